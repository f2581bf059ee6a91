package turns_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/services/gateway/internal/turns"
)

// line takes turns for clients, and records the order in which they get them.
type line struct {
	waiting sync.WaitGroup
	mu      sync.Mutex
	got     []string // guarded by mu
}

// take waits for a turn in another goroutine, and then passes it on.
func (l *line) take(name string, c *turns.Client) {
	l.waiting.Go(func() {
		turn := c.Take()
		l.mu.Lock()
		l.got = append(l.got, name)
		l.mu.Unlock()
		turn.Release()
	})
	synctest.Wait()
}

func TestAClientHasStandingWhileItsCallsAreServed(t *testing.T) {
	for name, c := range map[string]struct {
		calls string // s is served, r refused
		want  bool
	}{
		"a new client":                         {"", false},
		"a served call":                        {"s", true},
		"a refused call":                       {"r", false},
		"as many as the served ones allow":     {"sssssr", true},
		"more than these":                      {"ssssr", false},
		"a served call after refused ones":     {"rrrrrrs", true},
		"mostly refused calls":                 {"srsrsr", false},
		"no credit grows without a bound":      {repeat("s", 1000) + repeat("r", 16), false},
		"a client that was always served errs": {repeat("s", 1000) + repeat("r", 15), true},
	} {
		client := turns.New(1).Client()
		for _, call := range c.calls {
			if call == 's' {
				client.Served()
			} else {
				client.Refused()
			}
		}
		if got := client.Standing(); got != c.want {
			t.Errorf("%s: standing is %t", name, got)
		}
		if turn := client.Take(); (turn == nil) != c.want {
			t.Errorf("%s: the turn is %v", name, turn)
		}
	}
}

func repeat(s string, n int) (all string) {
	for range n {
		all += s
	}
	return all
}

func TestThoseWhoHaveUsedLeastComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns.New(1)
		used := func(d time.Duration) *turns.Client {
			c := all.Client()
			turn := c.Take()
			<-time.After(d)
			turn.Release()
			return c
		}
		much, little, nothing, later := used(5*time.Millisecond), used(2*time.Millisecond), all.Client(), all.Client()
		held := all.Client().Take()
		var l line
		for _, c := range []struct {
			name string
			*turns.Client
		}{{"much", much}, {"little", little}, {"nothing", nothing}, {"later", later}} {
			l.take(c.name, c.Client)
		}
		held.Release()
		l.waiting.Wait()
		if diff := cmp.Diff([]string{"nothing", "later", "little", "much"}, l.got); diff != "" {
			t.Error(diff)
		}
	})
}

// A connection may wait for its next turn while handlers of its calls still use the previous one.
func TestATurnThatGoesOnCountsForAClientThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns.New(2)
		busy, other := all.Client(), all.Client()
		first := all.Client().Take()
		<-time.After(time.Millisecond)
		second := busy.Take()
		handler := second.Join()
		second.Release()
		var l line
		l.take("busy", busy)
		l.take("other", other)
		<-time.After(time.Millisecond)
		synctest.Wait()
		if len(l.got) != 0 {
			t.Fatalf("%v have had a turn while all are taken", l.got)
		}
		handler.Release()
		synctest.Wait()
		first.Release()
		l.waiting.Wait()
		if l.got[0] != "other" {
			t.Errorf("the order is %v", l.got)
		}
	})
}

func TestATurnLastsUntilAllHaveReleasedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns.New(1)
		turn := all.Client().Take()
		joined := turn.Join()
		var l line
		l.take("next", all.Client())
		turn.Release()
		synctest.Wait()
		if len(l.got) != 0 {
			t.Error("the turn was passed on while one has it")
		}
		joined.Release()
		l.waiting.Wait()
		if late := turn.Join(); late != nil {
			t.Error("a turn that is over was joined")
		}
		turn.Release() // one release too many
		held := all.Client().Take()
		l.take("another", all.Client())
		if len(l.got) != 1 {
			t.Error("a turn that was released twice is two")
		}
		held.Release()
		l.waiting.Wait()
	})
}

// Work that blocks does not make the others wait.
func TestATurnEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns.New(1)
		blocked := all.Client().Take()
		var l line
		l.take("next", all.Client())
		l.waiting.Wait()
		if late := blocked.Join(); late != nil {
			t.Error("a turn that is over was joined")
		}
		held := all.Client().Take()
		blocked.Release()
		l.take("another", all.Client())
		if len(l.got) != 1 {
			t.Error("a turn that was over was passed on again")
		}
		held.Release()
		l.waiting.Wait()
	})
}

func TestClientsThatLeaveOrAreServedWaitNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns.New(1)
		held := all.Client().Take()
		gone, served, stays := all.Client(), all.Client(), all.Client()
		var l line
		l.take("stays", stays)
		l.take("gone", gone)
		l.take("served", served)
		gone.Leave()
		served.Served()
		synctest.Wait()
		if diff := cmp.Diff(2, len(l.got)); diff != "" || l.got[0] == "stays" || l.got[1] == "stays" {
			t.Errorf("%v wait no more", l.got)
		}
		if gone.Take() != nil {
			t.Error("a client that has left has a turn")
		}
		held.Release()
		l.waiting.Wait()
	})
}

func TestWithoutTurnsNobodyWaits(t *testing.T) {
	var none *turns.Turns
	c := none.Client()
	c.Refused()
	c.Served()
	turn := c.Take()
	if turn.Join() != nil || !c.Standing() {
		t.Error("a client without turns waits for them")
	}
	turn.Release()
	c.Leave()
}

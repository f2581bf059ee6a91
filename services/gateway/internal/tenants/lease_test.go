package tenants_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// cluster is several gateways that share the limits of one tenant, whose key is k, through a store.
type cluster struct {
	t        *testing.T
	gateways []*tenants.Tenants

	mu     sync.Mutex
	levels map[string]tenants.Level // the store's; guarded by mu
	away   bool                     // the store is unavailable; guarded by mu
	last   []time.Time              // the last round of each gateway; guarded by mu
}

func newCluster(t *testing.T, gateways int, tier string) *cluster {
	c := &cluster{t: t, levels: make(map[string]tenants.Level)}
	for i := range gateways {
		g := tenants.New(nobody{}, time.Now)
		short := g.Share()
		g.Set(read(t, "version: 1\ntiers: {t: "+tier+"}\ntenants: {acme: {tier: t, keys: [{sha256: "+policy.Key("k")+"}]}}"), nil)
		c.gateways, c.last = append(c.gateways, g), append(c.last, time.Now())
		go func() { // a gateway leases at once if a request waits for it
			for {
				select {
				case <-short:
					c.lease(i)
				case <-t.Context().Done():
					return
				}
			}
		}()
	}
	return c
}

// settle plays the store in a lease.
func (c *cluster) settle(_ string, wanted []tenants.Balance) (granted []tenants.Grant, err error) {
	if c.away {
		return nil, errors.New("the store is away")
	}
	for i := range wanted {
		b := &wanted[i]
		level, ok := c.levels[b.Name()]
		if !ok {
			level = b.Full(time.Now())
		}
		granted = append(granted, b.Take(&level, time.Now()))
		c.levels[b.Name()] = level
	}
	return granted, nil
}

// lease makes a gateway exchange what it holds.
func (c *cluster) lease(gateway int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := time.Since(c.last[gateway])
	c.last[gateway] = time.Now()
	_ = c.gateways[gateway].Lease(len(c.gateways), since, c.settle)
}

// round makes every gateway lease.
func (c *cluster) round() {
	for i := range c.gateways {
		c.lease(i)
	}
}

// goes makes the store unavailable, or available again.
func (c *cluster) goes(away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = away
}

// request reports whether a gateway accepts a request.
func (c *cluster) request(gateway int, cost float64) bool {
	who, err := c.gateways[gateway].Current().Identify(key("k"))
	if err != nil {
		c.t.Fatal(err)
	}
	r, err := reserve(c.t, who, tenants.Demand{Cost: cost})
	if err != nil && errs.Of(err) != errs.QuotaExceeded {
		c.t.Fatal(err)
	}
	r.Settle(cost)
	return err == nil
}

// every calls a function in steps for a duration, with rounds of leases at the gateways' interval.
func (c *cluster) every(step, d time.Duration, do func()) {
	last := time.Now()
	for end := time.Now().Add(d); time.Now().Before(end); {
		do()
		<-time.After(step)
		if time.Since(last) >= 100*time.Millisecond {
			last = time.Now()
			c.round()
		}
	}
}

// While the store is unavailable, each gateway grants what it holds, which is at least half of its share, and
// its share of what was left for all.
func TestGatewaysGiveTheirPartWithoutTheStore(t *testing.T) {
	for _, tt := range []struct {
		name     string
		gateways int
		used     int // by the first gateway before the store goes away
		want     int // of 1,000 by one gateway in what is left of the day
	}{
		{"the only one", 1, 0, 1000},
		{"the only one, of what was left", 1, 700, 300},
		{"one of two", 2, 0, 250 + 375},
		{"one of four", 4, 0, 125 + 218},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, tt.gateways, "{budgets: [{requests: 1000, per: 24h}]}")
				used := 0
				c.every(10*time.Millisecond, 30*time.Second, func() {
					if used < tt.used && c.request(0, 1) {
						used++
					}
				})
				if used != tt.used {
					t.Fatalf("%d requests are taken with the store", used)
				}
				c.round()
				c.goes(true)
				n := 0
				c.every(10*time.Millisecond, time.Minute, func() {
					if c.request(0, 1) {
						n++
					}
				})
				if n != tt.want {
					t.Errorf("%d requests are taken without the store, want %d", n, tt.want)
				}
				// What was taken is owed: nothing is left for this gateway's part.
				if c.goes(false); tt.gateways == 1 {
					c.every(10*time.Millisecond, time.Minute, func() {
						if c.request(0, 1) {
							t.Fatal("more than the budget is taken when the store is back")
						}
					})
				}
				<-time.After(time.Until(time.Now().Truncate(24 * time.Hour).Add(24 * time.Hour)))
				if !c.request(0, 1) {
					t.Error("the next window gives nothing")
				}
			})
		})
	}
}

// A new window is full, even if the store is unavailable when it starts.
func TestANewWindowIsWholeWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, "{budgets: [{requests: 100, per: 1h}]}")
		<-time.After(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		c.goes(true)
		for window := range 3 {
			n := 0
			c.every(100*time.Millisecond, time.Hour, func() {
				if c.request(0, 1) {
					n++
				}
			})
			if n != 50 {
				t.Errorf("window %d: %d requests are taken by one of two gateways, want 50", window, n)
			}
		}
	})
}

// What gateways granted while the store was unavailable is owed, up to a burst: once it is available, the
// limits hold as before.
func TestRatesHoldAfterTheStoreWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, "{limits: {requests_per_second: 30}}")
		taken := func(d time.Duration) (n int) {
			c.every(5*time.Millisecond, d, func() {
				for i := range c.gateways {
					if c.request(i, 1) {
						n++
					}
				}
			})
			return n
		}
		taken(10 * time.Second)
		c.goes(true)
		if n := taken(10 * time.Minute); n < 9*30*60 || n > 10*30*60+100 {
			t.Errorf("%d requests are taken in 10 minutes without the store at 30 a second", n)
		}
		c.goes(false)
		if n := taken(10 * time.Second); n < 250 || n > 10*30+3*5 {
			t.Errorf("%d requests are taken in the 10 seconds after", n)
		}
	})
}

// Whichever gateway gets the requests, and however often the store becomes unavailable, the gateways together
// grant no more than the limits and their shares, and all of that on demand.
func TestSharedLimitsHoldUnderRandomHistories(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomHistory(t, seed) })
		})
	}
}

func randomHistory(t *testing.T, seed uint64) {
	draw := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's
	gateways, budget := 1+draw.IntN(4), 20+draw.IntN(200)
	loses := seed%2 == 1
	c := newCluster(t, gateways, fmt.Sprintf("{budgets: [{requests: %d, per: 1h}], limits: {cost_units_per_second: 50, burst: 2s}}", budget))
	<-time.After(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
	for range 4 {
		end := time.Now().Add(time.Hour)
		requests, cost := 0, 0.0
		start, asked := time.Now(), false
		for time.Now().Before(end.Add(-20 * time.Second)) {
			switch draw.IntN(20) {
			case 0:
				c.goes(loses && draw.IntN(2) == 0)
			case 1:
				<-time.After(time.Duration(draw.IntN(15_000)) * time.Millisecond)
			}
			units := float64(draw.IntN(100))
			if c.request(draw.IntN(gateways), units) {
				requests++
				cost += units
			} else {
				asked = true
			}
			<-time.After(time.Duration(draw.IntN(200)) * time.Millisecond)
			c.round()
		}
		most := budget + gateways*max(1, budget/50)
		if loses {
			most += budget // those that were not asked have their part of a whole window
		}
		if requests > most {
			t.Errorf("%d requests are taken by %d gateways, with a budget of %d and at most %d", requests, gateways, budget, most)
		}
		if given := 50*time.Since(start).Seconds() + 100 + 100*float64(gateways); cost > given {
			t.Errorf("%.0f cost units are taken, and %.0f given", cost, given)
		}
		if least := min(budget, 100) * 9 / 10; asked && gateways == 1 && requests < least {
			t.Errorf("the only gateway takes %d requests of a budget of %d", requests, budget)
		}
		c.goes(false)
		<-time.After(time.Until(end))
		c.round()
	}
}

// A gateway that stops returns what it holds.
func TestAGatewayThatStopsGivesBackWhatItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "{budgets: [{requests: 100, per: 24h}]}")
		if !c.request(0, 1) {
			t.Fatal("the first request is refused")
		}
		c.round()
		_ = c.gateways[0].Lease(0, 0, c.settle)
		if got := c.levels["requests/24h0m0s"].Left; got != 99 {
			t.Errorf("%v of 100 are left after one request", got)
		}
	})
}

// A full limit means the same in the store as an absent value.
func TestLimitsAreWholeAfterATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, "{limits: {requests_per_second: 10, burst: 4s}, budgets: [{requests: 100, per: 1h}]}")
		<-time.After(time.Until(time.Now().Truncate(time.Hour).Add(90 * time.Minute)))
		var whole []string
		settle := func(_ string, wanted []tenants.Balance) ([]tenants.Grant, error) {
			granted, err := c.settle("", wanted)
			whole = nil
			for i := range wanted {
				whole = append(whole, wanted[i].Whole(c.levels[wanted[i].Name()], time.Now()).String())
			}
			return granted, err
		}
		c.request(0, 1)
		_ = c.gateways[0].Lease(1, 0, settle)
		// Of 40 requests one is used, and 20 are out on the lease.
		if got := strings.Join(whole, " "); got != "2.1s 30m0s" {
			t.Errorf("whole after %s", got)
		}
	})
}

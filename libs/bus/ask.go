package bus

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Subject is a subject for questions to all processes of a kind: those that know the answer
// reply, the others are silent. Questions are not stored.
type Subject string

// The subjects.
const (
	// AskGateways asks gateways for the outcome of a request.
	AskGateways Subject = "nereid.explain.gateways"
	// AskSchedulers asks schedulers for their decisions about a request.
	AskSchedulers Subject = "nereid.explain.schedulers"
)

// Answer answers questions, one at a time, until ctx is done or the Bus is closed. nil means
// that it does not know the answer, and sends none.
func (b *Bus) Answer(ctx context.Context, s Subject, answer func(question []byte) (reply []byte)) error {
	sub, err := b.conn.Subscribe(string(s), func(m *nats.Msg) {
		if reply := answer(m.Data); reply != nil {
			_ = m.Respond(reply) // who has asked waits no longer than it wants to
		}
	})
	if err != nil {
		return errs.Wrap(errs.StateUnavailable, err, "the store does not take the subscription of %s", s)
	}
	select {
	case <-ctx.Done():
	case <-b.life.Done():
	}
	_ = sub.Unsubscribe() // of a connection that is closed there is none
	return nil
}

// Ask sends a question to all processes that answer a subject, and passes their replies to take
// until it has enough or the time is over, which is not an error.
func (b *Bus) Ask(ctx context.Context, s Subject, question []byte, wait time.Duration, take func(reply []byte) (enough bool)) error {
	ctx, end := context.WithTimeout(ctx, wait)
	defer end()
	inbox := b.conn.NewRespInbox()
	replies := make(chan *nats.Msg, waitingReplies) // a subscription's own channel has 64 Ki places
	sub, err := b.conn.ChanSubscribe(inbox, replies)
	if err == nil {
		defer func() { _ = sub.Unsubscribe() }()
		err = b.conn.PublishRequest(string(s), inbox, question)
	}
	if err != nil {
		return errs.Wrap(errs.StateUnavailable, err, "nobody can be asked about %s", s)
	}
	for {
		select {
		case m := <-replies:
			if nobody := len(m.Data) == 0 && m.Header.Get("Status") == noResponders; nobody || take(m.Data) {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// waitingReplies is how many replies to one question may wait to be taken; further ones are lost.
const waitingReplies = 256

// noResponders is the status by which NATS says that nobody has subscribed to a subject.
const noResponders = "503"

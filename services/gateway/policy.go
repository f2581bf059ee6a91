package gateway

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/policy"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
	"github.com/nereid-serving/nereid/services/gateway/internal/tokens"
)

// policies maintains the policy in force: the one in a file, which is reloaded when it changes, or the one that
// the registry publishes.
type policies struct {
	path     string // empty: the registry's policy
	required string // auto, true or false: see [Config]
	log      *zap.Logger

	tenants   *tenants.Tenants
	costs     *tenants.Costs
	verifiers *lifecycle.DynamicGroup // of the current policy; they keep its keys fresh
	reloads   *prometheus.CounterVec

	settled chan struct{} // closed when calls may be accepted
	changed chan struct{} // signals that calls start or stop being refused for lack of a policy

	// Owned by run.
	stop   context.CancelFunc // of the current verifier
	text   string             // the last text that needs no retry: it is in force, or invalid
	failed string             // why the last attempt failed; empty if it did not

	mu     sync.Mutex
	digest string // of the policy in force; guarded by mu
	shadow bool   // guarded by mu
}

const (
	// policyPoll is how often the policy file is read, and how often a policy is retried whose keys could not
	// be loaded.
	policyPoll = time.Second
	// policyWait is how long a gateway waits to learn whether there is a policy. It then logs that it does not
	// know and, if no policy is required, serves without one.
	policyWait = 10 * time.Second
)

func newPolicies(path, required string, meter tenants.Meter, metrics prometheus.Registerer, log *zap.Logger) *policies {
	p := &policies{
		path: path, required: required, log: log, tenants: tenants.New(meter, time.Now), costs: new(tenants.Costs),
		verifiers: lifecycle.NewDynamicGroup(), settled: make(chan struct{}), changed: make(chan struct{}, 1), stop: func() {},
	}
	p.reloads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nereid_gateway_policy_loads_total", Help: "Policies that were read, by result: loaded; refused, where the one before stays.",
	}, []string{"result"})
	metrics.MustRegister(p.reloads, p)
	return p
}

// Describe implements prometheus.Collector.
func (p *policies) Describe(out chan<- *prometheus.Desc) {
	out <- policyInfo()
	out <- costError()
}

// Collect implements prometheus.Collector.
func (p *policies) Collect(out chan<- prometheus.Metric) {
	p.mu.Lock()
	digest, shadow := p.digest, p.shadow
	p.mu.Unlock()
	if digest != "" {
		out <- prometheus.MustNewConstMetric(policyInfo(), prometheus.GaugeValue, 1, digest, fmt.Sprint(shadow))
	}
	p.costs.Errors(func(model string, relative float64) {
		out <- prometheus.MustNewConstMetric(costError(), prometheus.GaugeValue, relative, model)
	})
}

func policyInfo() *prometheus.Desc {
	return prometheus.NewDesc("nereid_gateway_policy_info", "1, with the digest of the policy in force and whether it refuses nothing.", []string{"digest", "shadow"}, nil)
}

func costError() *prometheus.Desc {
	return prometheus.NewDesc("nereid_gateway_cost_error_ratio",
		"How far the predicted costs of recent requests were off, on average, relative to what they have cost.", []string{"model"}, nil)
}

// missing returns the error for calls while a policy is required and there is none; nil otherwise.
func (p *policies) missing() error {
	_, err := p.tenants.View()
	return err
}

// await waits until the gateway knows which policy applies, or until one of the contexts is done.
func (p *policies) await(starting, serving context.Context) {
	select {
	case <-p.settled:
	case <-starting.Done():
	case <-serving.Done():
	}
}

// run puts policies in force as they change, until ctx is done: those of the file or, without a file, those
// that the registry publishes. An invalid policy changes nothing. If the file has no valid policy at the start,
// run fails with the reason policy_invalid.
func (p *policies) run(ctx context.Context, store *bus.Bus) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.verifiers.Run(ctx) })
	group.Go(func() error {
		if p.path != "" {
			return p.followFile(ctx)
		}
		return p.followStore(ctx, store)
	})
	return group.Wait()
}

func (p *policies) followFile(ctx context.Context) error {
	text, err := policy.ReadFile(p.path)
	if err == nil {
		err = p.load(ctx, p.path, text)
	}
	if err != nil {
		return err
	}
	close(p.settled)
	for lifecycle.Pause(ctx, policyPoll); ctx.Err() == nil; lifecycle.Pause(ctx, policyPoll) {
		if text, err := policy.ReadFile(p.path); err != nil {
			p.refuse(err)
		} else {
			p.replace(ctx, p.path, text)
		}
	}
	return nil
}

// followStore puts the policies that the registry publishes in force. Unless --require-policy is false, a
// policy is required as soon as one has been published, even if it cannot be read, and no call is accepted
// before the gateway knows that none has been.
func (p *policies) followStore(ctx context.Context, store *bus.Bus) error {
	bucket, err := bus.NewBucket(store, bus.Policies, bus.Values[*nereidv1.PolicyValue]())
	if err != nil {
		return err
	}
	events, err := bucket.WatchKey(ctx, bus.CurrentPolicy)
	if err != nil {
		return err
	}
	again := time.NewTicker(policyPoll)
	defer again.Stop()
	late := time.NewTimer(policyWait)
	defer late.Stop()
	is := published{needed: p.required == "true"}
	for settled, refusing := false, false; ; {
		select {
		case e, open := <-events:
			if !open {
				return nil
			}
			p.take(&is, e)
		case <-again.C: // issuers' keys that could not be read may be available now
		case <-late.C:
			p.late(&is)
		}
		if is.value != nil {
			p.replace(ctx, is.value.GetSource(), []byte(is.value.GetText()))
		}
		missing := is.needed && p.tenants.Current() == nil
		p.tenants.Require(missing)
		if missing != refusing {
			refusing = missing
			select {
			case p.changed <- struct{}{}:
			default: // a signal is already pending
			}
		}
		if !settled && !missing && (is.known || p.tenants.Current() != nil) {
			settled = true
			close(p.settled)
		}
	}
}

// published is what the gateway knows about the policy that the registry publishes.
type published struct {
	needed bool                  // calls are refused without a policy
	known  bool                  // whether a policy was published is known, or does not matter
	value  *nereidv1.PolicyValue // the last value that could be decoded, or nil
}

// take records an event of the policy's key. Deleting the key changes nothing.
func (p *policies) take(is *published, e bus.Event[*nereidv1.PolicyValue]) {
	switch e.Kind {
	case bus.EventPut:
		is.needed = p.required != "false"
		if e.Err != nil {
			p.refuse(e.Err)
			return
		}
		is.value = e.Value
	case bus.EventCaughtUp:
		if is.known = true; is.needed && is.value == nil {
			p.log.Warn("no calls are accepted before the registry has published a policy: start it with --cluster-policy")
		}
	}
}

// late logs that the gateway still does not know whether a policy was published.
func (p *policies) late(is *published) {
	switch {
	case is.known:
	case p.required == "false":
		is.known = true
		p.log.Warn("it is not known whether the registry has published a policy: serving without one")
	default:
		p.log.Warn("no calls are accepted, since it is not known whether the registry has published a policy: make the bucket policy readable for the gateway's NATS user (nereid credentials), or serve without policies by --require-policy=false")
	}
}

// replace puts a new policy in force. It does not retry an invalid policy, but does retry one whose issuers'
// keys cannot be read.
func (p *policies) replace(ctx context.Context, name string, text []byte) {
	if string(text) == p.text {
		return
	}
	if err := p.load(ctx, name, text); err != nil && ctx.Err() == nil {
		p.refuse(err)
	}
}

// refuse logs and counts why a policy is not in force, once per reason.
func (p *policies) refuse(err error) {
	if p.failed == err.Error() {
		return
	}
	p.failed = err.Error()
	p.reloads.WithLabelValues("refused").Inc()
	p.log.Error("the policy is refused: the one before stays in force", obs.Err(err)...)
}

// load puts a policy in force. If it fails, the previous policy stays in force.
func (p *policies) load(ctx context.Context, name string, text []byte) error {
	made, findings := policy.Read(text)
	if made == nil {
		p.text = string(text)
		return policy.Invalid(name, findings, maxShown)
	}
	verifier := tokens.New(made.Issuers, func(issuer string, err error) {
		p.log.Warn("the keys of a tokens' issuer cannot be read: those known so far stay", append(obs.Err(err), zap.String("issuer", issuer))...)
	})
	if err := verifier.Load(ctx); err != nil {
		return err
	}
	p.tenants.Set(made, verifier)
	p.stop()
	fresh, stop := context.WithCancel(ctx)
	p.stop = stop
	p.verifiers.Add(func(context.Context) error { return verifier.Run(fresh) })
	p.text, p.failed = string(text), ""
	p.reloads.WithLabelValues("loaded").Inc()
	p.mu.Lock()
	p.digest, p.shadow = made.Digest, made.Shadow
	p.mu.Unlock()
	p.log.Info("policy in force", zap.String("policy", name), zap.String("digest", made.Digest), zap.Int("tenants", len(made.Tenants())), zap.Bool("shadow", made.Shadow))
	return nil
}

// maxShown is the maximum number of findings in an error.
const maxShown = 20

// recall seeds the cost predictions with the execution costs that the schedulers have stored, until ctx is
// done.
func (p *policies) recall(ctx context.Context, store *bus.Bus) error {
	bucket, err := bus.NewBucket(store, bus.Costs, bus.Values[*nereidv1.CostsValue]())
	if err != nil {
		return err
	}
	for e := range bucket.Watch(ctx) {
		if e.Kind == bus.EventDelete {
			p.costs.Forget(infer.ParseModelID(e.Key))
		}
		if e.Kind != bus.EventPut || e.Err != nil {
			continue
		}
		for _, version := range e.Value.GetVersions() {
			p.costs.Recall(infer.ParseModelID(e.Key), codec.CostsOf(version.GetCosts()))
		}
	}
	return nil
}

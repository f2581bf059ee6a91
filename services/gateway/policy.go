package gateway

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/policy"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
	"github.com/nereid-serving/nereid/services/gateway/internal/tokens"
)

// policies has the gateway's policy in force: that of a file, read again when it changes.
type policies struct {
	path     string // empty: none
	required bool   // no call is taken without one
	log      *zap.Logger

	tenants *tenants.Tenants
	costs   *tenants.Costs
	stop    context.CancelFunc // of what keeps the present policy's keys fresh

	read    [sha256.Size]byte // of the text that was read last
	reloads *prometheus.CounterVec

	settled chan struct{} // closed when it is known which policy there is
	once    sync.Once     // closes settled

	mu     sync.Mutex
	digest string // of the policy in force; guarded by mu
	shadow bool   // guarded by mu
}

// policyPoll is how often a policy's file is looked at.
const policyPoll = time.Second

func newPolicies(path string, required bool, meter tenants.Meter, metrics prometheus.Registerer, log *zap.Logger) *policies {
	p := &policies{path: path, required: required, log: log, tenants: tenants.New(meter, time.Now), costs: new(tenants.Costs), stop: func() {}, settled: make(chan struct{})}
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

// start puts the policy of the file in force. Without one there is none. The error has
// the reason policy_invalid.
func (p *policies) start(ctx context.Context) error {
	if p.path == "" {
		return nil
	}
	defer p.settle()
	text, err := os.ReadFile(p.path)
	if err != nil {
		return errs.Wrap(errs.PolicyInvalid, err, "--policy: the policy cannot be read: %v", err)
	}
	return p.load(ctx, p.path, text)
}

// settle says that it is known which policy there is, so that calls may be taken.
func (p *policies) settle() { p.once.Do(func() { close(p.settled) }) }

// policyWait is how long a gateway that may serve without a policy waits to hear whether
// there is one: an older registry makes no bucket for it, and NATS may not let it be read.
const policyWait = 10 * time.Second

// await waits until it is known which policy there is, or one of the contexts ends.
func (p *policies) await(starting, serving context.Context) {
	wait := time.NewTimer(policyWait)
	defer wait.Stop()
	late := wait.C
	if p.required {
		late = nil
	}
	select {
	case <-p.settled:
	case <-starting.Done():
	case <-serving.Done():
	case <-late:
		p.log.Warn("it is not known whether the registry has a policy: serving without one; see the bucket policy, and make the NATS users of an earlier release anew")
	}
}

// load puts a policy in force. Where it cannot, the one before stays.
func (p *policies) load(ctx context.Context, name string, text []byte) error {
	p.read = sha256.Sum256(text)
	made, findings := policy.Read(text)
	if made == nil {
		p.reloads.WithLabelValues("refused").Inc()
		return policy.Invalid(name, findings, maxShown)
	}
	fresh, stop := context.WithCancel(ctx)
	verifier, err := tokens.New(fresh, made.Issuers, func(issuer string, err error) {
		p.log.Warn("the keys of a tokens' issuer cannot be read: those known so far stay", append(obs.Err(err), zap.String("issuer", issuer))...)
	})
	if err != nil {
		stop()
		p.reloads.WithLabelValues("refused").Inc()
		return err
	}
	p.tenants.Set(made, verifier)
	p.stop()
	p.stop = stop
	p.reloads.WithLabelValues("loaded").Inc()
	p.mu.Lock()
	p.digest, p.shadow = made.Digest, made.Shadow
	p.mu.Unlock()
	p.log.Info("policy in force", zap.String("policy", name), zap.String("digest", made.Digest), zap.Int("tenants", len(made.Tenants())), zap.Bool("shadow", made.Shadow))
	return nil
}

// recall has predictions begin with what the schedulers have kept of what executions take,
// until ctx is done.
func (p *policies) recall(ctx context.Context, store *bus.Bus) error {
	bucket, err := bus.NewBucket(store, bus.Costs, bus.Values[*nereidv1.CostsValue]())
	if err != nil {
		return err
	}
	for e := range bucket.Watch(ctx) {
		if e.Kind != bus.EventPut || e.Err != nil {
			continue
		}
		for _, version := range e.Value.GetVersions() {
			p.costs.Recall(infer.ParseModelID(e.Key), codec.CostsOf(version.GetCosts()))
		}
	}
	return nil
}

// maxShown is how many findings an error names.
const maxShown = 20

// follow puts policies in force as they change, until ctx is done: those of the file or,
// without one, those that the registry publishes. One that is not valid changes nothing.
func (p *policies) follow(ctx context.Context, store *bus.Bus) error {
	if p.path == "" {
		return p.followStore(ctx, store)
	}
	p.followFile(ctx)
	return nil
}

func (p *policies) followStore(ctx context.Context, store *bus.Bus) error {
	bucket, err := bus.NewBucket(store, bus.Policies, bus.Values[*nereidv1.PolicyValue]())
	if err != nil {
		return err
	}
	for e := range bucket.Watch(ctx) {
		err := e.Err
		if err == nil && e.Kind == bus.EventPut {
			if err = p.load(ctx, e.Value.GetSource(), []byte(e.Value.GetText())); err == nil {
				p.settle()
			}
		}
		if err != nil {
			p.log.Error("the registry's policy is refused: the one before stays in force", obs.Err(err)...)
		}
		switch {
		case e.Kind != bus.EventCaughtUp:
		case p.required && p.tenants.Current() == nil:
			p.log.Warn("no calls are taken before the registry has published a policy: start it with --cluster-policy")
		default:
			p.settle()
		}
	}
	return nil
}

func (p *policies) followFile(ctx context.Context) {
	unreadable := false
	for lifecycle.Pause(ctx, policyPoll); ctx.Err() == nil; lifecycle.Pause(ctx, policyPoll) {
		text, err := os.ReadFile(p.path)
		if err != nil {
			if !unreadable {
				p.log.Error("the policy cannot be read: the one before stays in force", obs.Err(err)...)
			}
			unreadable = true
			continue
		}
		unreadable = false
		if sha256.Sum256(text) == p.read {
			continue
		}
		if err := p.load(ctx, p.path, text); err != nil {
			p.log.Error("the policy is refused: the one before stays in force", obs.Err(err)...)
		}
	}
}

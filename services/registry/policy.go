package registry

import (
	"context"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/policy"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// currentPolicy is the key of the policy in its bucket.
const currentPolicy = "current"

// policyPoll is how often the policy's file is looked at.
const policyPoll = time.Second

// publishPolicy gives all gateways the policy of a file until ctx is done, again
// whenever it changes. One that is not valid changes nothing.
func publishPolicy(ctx context.Context, path string, to *bus.Bucket[*nereidv1.PolicyValue], log *zap.Logger) {
	published, refused := "", ""
	for ; ctx.Err() == nil; lifecycle.Pause(ctx, policyPoll) {
		text, err := readPolicy(path)
		if err == nil && text == published || err != nil && err.Error() == refused {
			continue
		}
		if err == nil {
			if _, err = to.Put(ctx, currentPolicy, &nereidv1.PolicyValue{Schema: nereidv1.Schema, Text: text, Source: path}); err == nil {
				published, refused = text, ""
				log.Info("policy published to all gateways", zap.String("policy", path))
				continue
			}
		}
		if ctx.Err() == nil {
			refused = err.Error()
			log.Error("the policy is not published: that of before stays in force", obs.Err(err)...)
		}
	}
}

// readPolicy reads a policy that is valid.
func readPolicy(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", errs.Wrap(errs.PolicyInvalid, err, "--cluster-policy: the policy cannot be read: %v", err)
	}
	if p, findings := policy.Read(text); p == nil {
		return "", policy.Invalid(path, findings, len(findings))
	}
	return string(text), nil
}

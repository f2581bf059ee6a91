package registry

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/policy"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// policyPoll is how often the policy's file is looked at.
const policyPoll = time.Second

// publishPolicy gives all gateways the policy of a file until ctx is done, again
// whenever it changes. One that is not valid changes nothing.
func publishPolicy(ctx context.Context, path string, to *bus.Bucket[*nereidv1.PolicyValue], log *zap.Logger) {
	published, failed := "", ""
	for ; ctx.Err() == nil; lifecycle.Pause(ctx, policyPoll) {
		text, err := readPolicy(path)
		if err == nil && text == published {
			failed = ""
			continue
		}
		if err == nil {
			_, err = to.Put(ctx, bus.CurrentPolicy, &nereidv1.PolicyValue{Schema: nereidv1.Schema, Text: text, Source: path})
		}
		switch {
		case err == nil:
			published, failed = text, ""
			log.Info("policy published to all gateways", zap.String("policy", path))
		case err.Error() != failed && ctx.Err() == nil:
			failed = err.Error()
			log.Error("the policy is not published: the one before stays in force", obs.Err(err)...)
		}
	}
}

// readPolicy reads a policy that is valid.
func readPolicy(path string) (string, error) {
	text, err := policy.ReadFile(path)
	if err != nil {
		return "", err
	}
	if p, findings := policy.Read(text); p == nil {
		return "", policy.Invalid(path, findings, len(findings))
	}
	return string(text), nil
}

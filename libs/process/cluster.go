package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/serve"
)

// ClusterSettings say how a process joins a cluster.
type ClusterSettings struct {
	ID              string `name:"id" placeholder:"ID" group:"Cluster" help:"Id of this process, unique within its service; by default the host's name and the process's number."`
	NATSURL         string `name:"nats-url" default:"nats://127.0.0.1:4222" secret:"url" group:"Cluster" help:"NATS servers, separated by commas; a URL may have user and password. With tls://, the cluster's certificates are used if there are any."`
	NATSCredentials string `name:"nats-credentials" placeholder:"FILE" group:"Cluster" help:"Credentials for NATS, or a key from nereid credentials."`
	StartTimeout    int    `name:"start-timeout-secs" default:"60" group:"Cluster" help:"How long the start waits for NATS, in seconds."`
	Certificate     string `name:"cluster-certificate" placeholder:"FILE" group:"Cluster" help:"This process's certificate for the other services, in PEM. With --cluster-key and --cluster-authority, services accept only each other, over TLS. Changed files are reloaded."`
	Key             string `name:"cluster-key" placeholder:"FILE" group:"Cluster" help:"The private key of the certificate, in PEM."`
	Authority       string `name:"cluster-authority" placeholder:"FILE" group:"Cluster" help:"Certificates of the authorities that have signed those of all services, in PEM. Host names are not verified."`
}

// Validate refuses values out of range, with the reason config_invalid.
func (s *ClusterSettings) Validate() error {
	given := 0
	for _, file := range []string{s.Certificate, s.Key, s.Authority} {
		if file != "" {
			given++
		}
	}
	switch {
	case given != 0 && given != 3:
		return errs.New(errs.ConfigInvalid, "TLS among the services needs all of --cluster-certificate, --cluster-key and --cluster-authority: give them all, or none")
	case strings.Contains(s.ID, "/"):
		return errs.New(errs.ConfigInvalid, "--id is %q: it may have no slash", s.ID)
	case s.NATSURL == "":
		return errs.New(errs.ConfigInvalid, "--nats-url is empty: say where NATS is, such as nats://127.0.0.1:4222")
	case foreign(s.NATSURL) != "":
		return errs.New(errs.ConfigInvalid, "--nats-url has the scheme %s://: want nats://HOST:PORT, or tls:// for TLS", foreign(s.NATSURL))
	case s.StartTimeout < 0:
		return errs.New(errs.ConfigInvalid, "--start-timeout-secs is %d: want 0 or more", s.StartTimeout)
	}
	return nil
}

// foreign returns the first scheme among the servers that NATS does not speak.
func foreign(urls string) string {
	for _, text := range strings.Split(urls, ",") {
		scheme, _, found := strings.Cut(strings.TrimSpace(text), "://")
		if found && !slices.Contains([]string{"nats", "tls", "ws", "wss"}, strings.ToLower(scheme)) {
			return scheme
		}
	}
	return ""
}

// Name is the id, or a generated one that distinguishes the processes of one host
// and of several hosts.
func (s *ClusterSettings) Name() (string, error) {
	if s.ID != "" {
		return s.ID, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", errs.Wrap(errs.ConfigInvalid, err, "the host has no name: give this process one with --id")
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid()), nil
}

// secure reads the files of TLS, if there are any.
func (s *ClusterSettings) secure(p *Process) (err error) {
	if s.Certificate == "" {
		return nil
	}
	files := serve.TLS{Certificate: s.Certificate, Key: s.Key, Roots: s.Authority, Mutual: true}
	failed := func(err error) {
		p.Log.Error("changed certificates cannot be used: the ones before stay", obs.Err(err)...)
	}
	if p.Listening, err = files.Config(failed); err != nil {
		return err
	}
	if p.Dialing, err = files.Dialer(failed); err != nil {
		return err
	}
	s.logValidity(p.Log, time.Now())
	return nil
}

// retry is how long the start waits before it tries NATS again.
const retry = 500 * time.Millisecond

// Connect opens the bus. It waits for NATS within the start timeout, so that services and NATS
// may start in any order. Errors have the reason state_unavailable, or immediately
// config_invalid if the credentials are unusable; when ctx ends it returns ctx's error.
func (s *ClusterSettings) Connect(ctx context.Context, p *Process) (*bus.Bus, error) {
	starting, cancel := context.WithTimeout(ctx, time.Duration(s.StartTimeout)*time.Second)
	defer cancel()
	for logged := false; ; logged = true {
		b, err := bus.Open(ctx, bus.Config{URL: s.NATSURL, Credentials: s.NATSCredentials, TLS: p.Dialing, Name: p.ID, Log: p.Log})
		switch {
		case err == nil:
			return b, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errs.Of(err) != errs.StateUnavailable:
			return nil, err
		case starting.Err() != nil:
			return nil, errs.Wrap(errs.StateUnavailable, err, "%v\nThe start has waited for %d s. %s", err, s.StartTimeout, remedy(err))
		case !logged:
			p.Log.Warn("waiting for nats", append(obs.Err(err), zap.String("url", bus.Redacted(s.NATSURL)))...)
		}
		lifecycle.Pause(starting, retry)
	}
}

// FollowLog makes a log follow the cluster's log settings until ctx is done, in a process that
// needs NATS for nothing else. While NATS is unavailable the log stays unchanged. The error has
// the reason config_invalid: certificates or credentials are unusable.
func (s *ClusterSettings) FollowLog(ctx context.Context, id string, logs *obs.Log) error {
	p := &Process{ID: id, Log: logs.Logger, Logs: logs}
	if err := s.secure(p); err != nil {
		return err
	}
	for ctx.Err() == nil {
		b, err := s.Connect(ctx, p)
		switch {
		case err == nil:
			return errors.Join(control.FollowLog(ctx, b, logs), b.Close())
		case ctx.Err() == nil && errs.Of(err) != errs.StateUnavailable:
			return err
		}
		lifecycle.Pause(ctx, retry)
	}
	return nil
}

// remedy names the settings that an error of the connection to NATS is about.
func remedy(err error) string {
	switch {
	case errors.Is(err, bus.ErrCredentials):
		return "--nats-credentials says which they are"
	case errors.Is(err, bus.ErrTLS):
		return "--cluster-certificate and --cluster-key are what this process shows, --cluster-authority is what it trusts"
	}
	return "On one machine \"nereid bus\" starts NATS; --nats-url says where it is"
}

// logValidity warns of a certificate that others refuse, or soon will. The process
// goes on: it reads a new file when there is one.
func (s *ClusterSettings) logValidity(log *zap.Logger, now time.Time) {
	pair, err := tls.LoadX509KeyPair(s.Certificate, s.Key)
	if err != nil || pair.Leaf == nil {
		return // its users have reported it
	}
	validity := []zap.Field{zap.String("file", s.Certificate), zap.Time("not_before", pair.Leaf.NotBefore), zap.Time("not_after", pair.Leaf.NotAfter)}
	switch {
	case now.After(pair.Leaf.NotAfter):
		log.Error("this process's certificate has expired: nats and the other services refuse it until --cluster-certificate is renewed", validity...)
	case now.Before(pair.Leaf.NotBefore):
		log.Error("this process's certificate is not valid yet: check the clock, or the file that --cluster-certificate names", validity...)
	case now.Add(soon).After(pair.Leaf.NotAfter):
		log.Warn("this process's certificate expires soon: renew the file that --cluster-certificate names", validity...)
	}
}

// soon is how long before its end a certificate should have been renewed.
const soon = 7 * 24 * time.Hour

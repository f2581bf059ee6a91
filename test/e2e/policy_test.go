package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/policy"
)

// policyFile writes a policy whose tenants have their names as keys. Callers without
// one may do everything, as the tests themselves.
func policyFile(t *testing.T, text string, tenants map[string]string) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "version: 1\nanonymous: {tier: open}\n%s\ntenants:\n", text)
	for name, tier := range tenants {
		fmt.Fprintf(&b, "  %s: {tier: %s, keys: [{name: test, sha256: %s}]}\n", name, tier, policy.Key(name))
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, file, b.String())
	return file
}

const openTier = "  open: {apis: [" + "health, metadata, inference, model-config, statistics, model-repository, shared-memory, trace, logging, explain" + "]}\n"

func TestTenantsWithRealClients(t *testing.T) {
	file := policyFile(t, `
bands: [{name: high}, {name: low, minimum: 10%}]
tiers:
`+openTier+`  gold: {weight: 4, band: low}
  small: {models: [m]}
  limited: {band: low, budgets: [{requests: 5, per: 24h}]}
  curled: {band: low, limits: {requests_per_second: 0.2, burst: 10s}}
classes:
  - {name: single, tiers: [gold], when: rows == 1, band: high}
`, map[string]string{"acme": "gold", "small": "small", "grpc": "limited", "http": "limited", "curl": "curled"})
	s := start(t, repository(t, map[string]string{
		"m/config.pbtxt": echo(0), "m/1/.keep": "", "private/config.pbtxt": echo(0), "private/1/.keep": "",
	}), "--cluster-policy="+file)
	s.eventually("the policy is in force", func() bool {
		status, _ := s.as("acne", "m")
		return status == http.StatusUnauthorized
	})
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_tenants.py", "-v")
}

// as has a tenant infer a model, with its name as its key.
func (s *server) as(tenant, model string) (int, string) {
	request, err := http.NewRequest(http.MethodPost, "http://"+s.HTTP+"/v2/models/"+model+"/infer", strings.NewReader(one))
	if err != nil {
		return 0, err.Error()
	}
	request.Header.Set("x-api-key", tenant)
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	return response.StatusCode, response.Header.Get("Nereid-Reason")
}

// A tenant that fills the queue of a model has its own requests refused, not those of
// another.
func TestFloodsOfATenantAreItsOwnLoss(t *testing.T) {
	file := policyFile(t, "tiers:\n"+openTier+"  one: {}\n", map[string]string{"greedy": "one", "modest": "one"})
	config := strings.Replace(echo(20_000), "max_batch_size: 1", "max_batch_size: 1\ndynamic_batching { default_queue_policy { max_queue_size: 8 } }", 1)
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": config, "m/1/.keep": ""}), "--cluster-policy="+file)
	s.eventually("the policy is in force", func() bool {
		status, _ := s.as("acne", "m")
		return status == http.StatusUnauthorized
	})
	stop, refused := make(chan struct{}), atomic.Int64{}
	var flood sync.WaitGroup
	for range 32 {
		flood.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if status, _ := s.as("greedy", "m"); status != http.StatusOK {
					refused.Add(1)
				}
			}
		})
	}
	s.eventually("the flood fills the queue", func() bool { return refused.Load() > 50 })
	for i := range 20 {
		if status, reason := s.as("modest", "m"); status != http.StatusOK {
			t.Errorf("request %d of the other tenant: %d %s", i, status, reason)
		}
	}
	close(stop)
	flood.Wait()
}

// A changed policy is in force everywhere after a moment, and one that is not valid never.
func TestPoliciesChangeWhileTheServerRuns(t *testing.T) {
	file := policyFile(t, "tiers:\n"+openTier, map[string]string{"first": "open"})
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": ""}), "--cluster-policy="+file)
	await := func(tenant string, want int) {
		t.Helper()
		s.eventually(fmt.Sprintf("%s gets %d", tenant, want), func() bool { status, _ := s.as(tenant, "m"); return status == want })
	}
	await("first", http.StatusOK)
	await("second", http.StatusUnauthorized)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, "version: 1\ntenats: {}\n")
	<-time.After(2500 * time.Millisecond) // it is looked at each second
	await("first", http.StatusOK)
	write(t, file, string(text)+"  second: {tier: open, keys: [{sha256: "+policy.Key("second")+"}]}\n")
	await("second", http.StatusOK)
}

// Over mutual TLS a tenant is known by the names in its certificate.
func TestCertificatesNameTenants(t *testing.T) {
	dir := certificates(t)
	file := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, file, `version: 1
tiers:
  all: {apis: [health, metadata, inference, model-config, statistics, model-repository]}
  small: {models: [m], apis: [health, metadata, inference]}
tenants:
  acme: {tier: all, certificates: [client]}
  small: {tier: small, certificates: ["visit*"]}
`)
	flags := []string{"--cluster-policy=" + file}
	for _, protocol := range []string{"http", "grpc"} {
		flags = append(flags, "--"+protocol+"-use-ssl-mutual=true", "--"+protocol+"-root-cert="+filepath.Join(dir, "root.pem"),
			"--"+protocol+"-server-cert="+filepath.Join(dir, "server.pem"), "--"+protocol+"-server-key="+filepath.Join(dir, "server.key"))
	}
	s := start(t, repository(t, map[string]string{
		"m/config.pbtxt": echo(0), "m/1/.keep": "", "private/config.pbtxt": echo(0), "private/1/.keep": "",
	}), flags...)
	for _, protocol := range []string{"http", "grpc"} {
		url := map[string]string{"http": s.HTTP, "grpc": s.GRPC}[protocol]
		ask := func(certificate string, command ...string) (text string, status int) {
			stdout, stderr, status := nereid(t, append(command, "--protocol="+protocol, "--url="+url, "--tls-root="+filepath.Join(dir, "root.pem"),
				"--tls-cert="+filepath.Join(dir, certificate+".pem"), "--tls-key="+filepath.Join(dir, certificate+".key"))...)
			return stdout + stderr, status
		}
		for name, c := range map[string]struct {
			certificate string
			command     []string
			status      int
			want        string
		}{
			"a model of all":                   {"client", []string{"infer", "private", "--input=x=1"}, 0, "INT32"},
			"its own model":                    {"visitor", []string{"infer", "m", "--input=x=1"}, 0, "INT32"},
			"a model of others":                {"visitor", []string{"infer", "private", "--input=x=1"}, 1, "[tenant_forbidden]"},
			"an API of others":                 {"visitor", []string{"models"}, 1, "[tenant_forbidden]"},
			"a certificate without a tenant":   {"server", []string{"infer", "m", "--input=x=1"}, 1, "[token_missing]"},
			"a certificate that others signed": {"stranger", []string{"infer", "m", "--input=x=1"}, 1, "tls"},
		} {
			t.Run(protocol+": "+name, func(t *testing.T) {
				if text, status := ask(c.certificate, c.command...); status != c.status || !strings.Contains(text, c.want) {
					t.Errorf("exit status %d, want %d with %q:\n%s", status, c.status, c.want, text)
				}
			})
		}
	}
}

// What became of a request is told by gateway, scheduler and worker together.
func TestRequestsAreExplained(t *testing.T) {
	config := strings.Replace(echo(0), "max_batch_size: 1", "max_batch_size: 4\ndynamic_batching { max_queue_delay_microseconds: 20000 }", 1)
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": config, "m/1/.keep": ""}))
	request, err := http.NewRequest(http.MethodPost, "http://"+s.HTTP+"/v2/models/m/infer", strings.NewReader(one))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Request-Timeout", "60s")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	id := response.Header.Get("Nereid-Request-Id")
	out, errors, status := nereid(t, "explain", id, "--url="+s.HTTP)
	if status != 0 {
		t.Fatalf("%d %s", status, errors)
	}
	for _, want := range []string{id, "outcome", "good", "run the model", "pool default", "dispatched, in batch", "others to join", "expected to be done"} {
		if !strings.Contains(out, want) {
			t.Errorf("the explanation lacks %q:\n%s", want, out)
		}
	}
	if _, errors, status := nereid(t, "explain", "1-1", "--url="+s.HTTP); status == 0 || !strings.Contains(errors, "1-1") {
		t.Errorf("of an unknown request: %d %s", status, errors)
	}
}

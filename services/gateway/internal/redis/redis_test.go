package redis_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/services/gateway/internal/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const password = "a-very-secret-password"

// server is a Redis of its own.
type server struct {
	*testing.T
	port    string
	args    []string
	process *exec.Cmd
}

// startServer starts the program that NEREID_REDIS names.
func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	if os.Getenv("NEREID_REDIS") == "" {
		t.Skip("NEREID_REDIS names no redis-server: make redis-test does")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close() // for the server
	s := &server{T: t, port: port, args: args}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *server) start() {
	s.Helper()
	port := []string{"--port", s.port}
	if len(s.args) > 0 && s.args[0] == "--tls-cert-file" {
		port = []string{"--port", "0", "--tls-port", s.port}
	}
	args := append(append([]string{"--bind", "127.0.0.1", "--save", "", "--dir", s.TempDir()}, port...), s.args...)
	s.process = exec.Command(os.Getenv("NEREID_REDIS"), args...)
	if err := s.process.Start(); err != nil {
		s.Fatal(err)
	}
	s.eventually("redis-server listens", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+s.port)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

func (s *server) kill() {
	if s.process != nil {
		_ = s.process.Process.Kill() // it may be gone
		_ = s.process.Wait()
		s.process = nil
	}
}

func (s *server) signal(sig syscall.Signal) {
	s.Helper()
	if err := s.process.Process.Signal(sig); err != nil {
		s.Fatal(err)
	}
}

func (s *server) eventually(what string, is func() bool) {
	s.Helper()
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	end := time.After(30 * time.Second)
	for !is() {
		select {
		case <-ticks.C:
		case <-end:
			s.Fatalf("not within 30 s: %s", what)
		}
	}
}

// user is a gateway with its values in a server.
type user struct {
	*server
	*redis.Values
	log     *observer.ObservedLogs
	metrics *prometheus.Registry
}

func (s *server) use(edit func(*redis.Options)) *user {
	o := redis.Options{
		Address: "127.0.0.1:" + s.port, Connect: 20 * time.Second, Socket: 20 * time.Second, Wait: 20 * time.Second, Connections: 4,
	}
	edit(&o)
	core, log := observer.New(zap.DebugLevel)
	u := &user{server: s, Values: redis.New(o, zap.New(core)), log: log, metrics: prometheus.NewRegistry()}
	u.metrics.MustRegister(u.Collectors()...)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = u.Run(ctx) // returns no error
	}()
	s.Cleanup(func() {
		stop()
		<-done
	})
	return u
}

func plain(*redis.Options) {}

// keeps sets a value and waits until Redis has it.
func (u *user) keeps(name, value string) {
	u.Helper()
	u.eventually(name+" is kept", func() bool {
		u.Set(name, func() []byte { return []byte(value) })
		return u.has(name, value)
	})
}

func (u *user) has(name, value string) bool {
	return string(u.Get(context.Background(), name, 100)) == value
}

func (u *user) up() float64 { return u.value("nereid_gateway_redis_up", "") }

func (u *user) value(family, result string) (sum float64) {
	u.Helper()
	families, err := u.metrics.Gather()
	if err != nil {
		u.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == family && (result == "" || m.GetLabel()[0].GetValue() == result) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// logged is what was logged, the message and the fields.
func (u *user) logged() (list []string) {
	for _, e := range u.log.All() {
		list = append(list, fmt.Sprint(e.Message, e.ContextMap()))
	}
	return list
}

func (u *user) count(text string) (n int) {
	for _, line := range u.logged() {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func TestGatewaysShareValues(t *testing.T) {
	s := startServer(t)
	one, other := s.use(plain), s.use(plain)
	one.keeps("a", "1")
	if !other.has("a", "1") || other.has("b", "1") || other.Get(t.Context(), "a", 0) != nil {
		t.Error("another gateway does not have the values that there are")
	}
	if found, absent := other.value("nereid_gateway_redis_lookups_total", "found"), other.value("nereid_gateway_redis_lookups_total", "absent"); found != 1 || absent != 2 {
		t.Errorf("%v are counted as found and %v as absent, want 1 and 2", found, absent)
	}
	if apart := s.use(func(o *redis.Options) { o.Database = 1 }); apart.has("a", "1") {
		t.Error("another database has the value")
	}
}

func TestARedisThatGoesIsLeftAloneUntilItIsBack(t *testing.T) {
	s := startServer(t)
	u := s.use(plain)
	u.keeps("a", "1")
	for range 2 {
		s.kill()
		s.eventually("Redis is away", func() bool { return u.Get(t.Context(), "a", 100) == nil && u.up() == 0 })
		skipped := u.value("nereid_gateway_redis_lookups_total", "skipped")
		if u.has("a", "1") || u.value("nereid_gateway_redis_lookups_total", "skipped") == skipped {
			t.Error("a Redis that is away is asked")
		}
		s.start()
		s.eventually("Redis is back", func() bool { return u.up() == 1 })
		u.keeps("a", "1")
	}
	if away, back := u.count("is away"), u.count("Redis is back"); away != 2 || back != 2 {
		t.Errorf("%d outages and %d ends are logged, want 2 of each: %q", away, back, u.logged())
	}
}

func TestASlowRedisIsLeftAlone(t *testing.T) {
	s := startServer(t)
	u := s.use(func(o *redis.Options) {
		o.Connect, o.Socket, o.Wait = 50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	})
	u.keeps("a", "1")
	s.signal(syscall.SIGSTOP)
	s.eventually("Redis is away", func() bool { return u.Get(t.Context(), "a", 100) == nil && u.up() == 0 })
	u.Set("b", func() []byte { t.Error("a value is made for a Redis that is away"); return nil })
	s.signal(syscall.SIGCONT)
	s.eventually("Redis is back", func() bool { return u.up() == 1 })
	s.eventually("the value is there", func() bool { return u.has("a", "1") })
}

// A request gives a slow Redis a part of its time alone, and ends the waiting.
func TestASlowRedisDoesNotTakeTheTimeOfRequests(t *testing.T) {
	s := startServer(t)
	u := s.use(func(o *redis.Options) { o.Connect, o.Socket, o.Wait = time.Hour, time.Hour, time.Hour })
	u.keeps("a", "1")
	s.signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if u.Get(ctx, "a", 100) != nil || ctx.Err() != nil {
		t.Error("a request has waited for Redis until its deadline")
	}
	s.signal(syscall.SIGCONT)
}

func TestSecretsAreInNoLog(t *testing.T) {
	s := startServer(t, "--requirepass", password)
	right := s.use(func(o *redis.Options) { o.Password = password })
	right.keeps("a", "1")
	for name, wrong := range map[string]*user{
		"wrong": s.use(func(o *redis.Options) { o.Username, o.Password = "somebody", password+"!" }), "none": s.use(plain),
	} {
		s.eventually(name+" password: away", func() bool { return wrong.up() == 0 })
		if wrong.has("a", "1") || wrong.count("is away") != 1 {
			t.Errorf("%s password: logged %q", name, wrong.logged())
		}
		if wrong.count("secret") != 0 || wrong.count("somebody") != 0 {
			t.Errorf("%s password: a secret is logged: %q", name, wrong.logged())
		}
	}
}

func TestARedisThatIsFullIsStillRead(t *testing.T) {
	s := startServer(t)
	u := s.use(plain)
	u.keeps("a", "1")
	admin, err := net.Dial("tcp", "127.0.0.1:"+s.port)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	answer := make([]byte, 5)
	if _, err := admin.Write([]byte("CONFIG SET maxmemory 1\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Read(answer); err != nil || string(answer) != "+OK\r\n" {
		t.Fatalf("%q, %v", answer, err)
	}
	s.eventually("a value is refused", func() bool {
		u.Set("b", func() []byte { return []byte("2") })
		return u.value("nereid_gateway_redis_insertions_total", "failed") > 2
	})
	if !u.has("a", "1") || u.count("refuses a command") != 1 || u.count("is away") != 0 {
		t.Errorf("logged %q", u.logged())
	}
}

func TestRedisOverTLS(t *testing.T) {
	certificate, key := identity(t)
	s := startServer(t, "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate)
	pem, err := os.ReadFile(certificate)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	with := func(c *tls.Config) *user { return s.use(func(o *redis.Options) { o.TLS = c }) }
	mutual := with(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: "redis.test"})
	mutual.keeps("a", "1")
	for name, c := range map[string]*tls.Config{
		"an unknown server":  {Certificates: []tls.Certificate{pair}, ServerName: "redis.test"},
		"another server":     {RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: "other.test"},
		"no certificate":     {RootCAs: roots, ServerName: "redis.test"},
		"TLS is not enabled": nil,
	} {
		u := with(c)
		s.eventually(name+": away", func() bool { return u.up() == 0 })
	}
}

// identity makes a certificate that signs itself, with openssl as an operator does.
func identity(t *testing.T) (certificate, key string) {
	t.Helper()
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	out, err := exec.Command("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=redis.test",
		"-addext", "subjectAltName=DNS:redis.test", "-keyout", key, "-out", certificate).CombinedOutput()
	if err != nil {
		t.Fatalf("openssl: %v: %s", err, out)
	}
	return certificate, key
}

package serve_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := serve.Listen(context.Background(), serve.Endpoint{Address: "127.0.0.1:0", Name: "HTTP", Setting: "--http-port"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestListenSaysWhatToDo(t *testing.T) {
	l := listen(t)
	defer l.Close()
	_, err := serve.Listen(context.Background(), serve.Endpoint{Address: l.Addr().String(), Name: "HTTP", Setting: "--http-port"})
	if errs.Of(err) != errs.ConfigInvalid {
		t.Fatalf("taken port: %v", err)
	}
	for _, part := range []string{"HTTP", l.Addr().String(), "--http-port", "in use"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %q", err, part)
		}
	}
}

// held is an endpoint whose requests wait until they are let go.
type held struct{ entered, release chan struct{} }

func newHeld() held { return held{make(chan struct{}), make(chan struct{})} }

func (h held) wait(ctx context.Context) error {
	close(h.entered)
	select {
	case <-h.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.wait(r.Context()) == nil {
		_, _ = io.WriteString(w, "done")
	}
}

func TestHTTPFinishesRequestsUnderWay(t *testing.T) {
	l, h := listen(t), newHeld()
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- serve.HTTP(ctx, &http.Server{Handler: h}, l, time.Hour) }()
	body := make(chan string, 1)
	go func() { body <- get(t, "http://"+l.Addr().String()) }()
	<-h.entered
	stop()
	close(h.release)
	if got := <-body; got != "done" {
		t.Errorf("body %q, want done", got)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestHTTPClosesWhatOutlastsTheGrace(t *testing.T) {
	l, h := listen(t), newHeld()
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- serve.HTTP(ctx, &http.Server{Handler: h}, l, time.Nanosecond) }()
	body := make(chan string, 1)
	go func() { body <- get(t, "http://"+l.Addr().String()) }()
	<-h.entered
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if got := <-body; got != "" {
		t.Errorf("body %q of a closed connection", got)
	}
}

func get(t *testing.T, url string) string {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		t.Error(err)
		return ""
	}
	response, err := client.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return string(body)
}

// health is a gRPC service whose one call is held.
type health struct {
	healthpb.UnimplementedHealthServer
	held
}

func (h health) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if err := h.wait(ctx); err != nil {
		return nil, err
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func TestGRPCMayBeStoppedBeforeItBegins(t *testing.T) {
	server := grpc.NewServer()
	server.Stop()
	if err := serve.GRPC(t.Context(), server, listen(t), time.Minute); err != nil {
		t.Errorf("served a stopped server: %v", err)
	}
}

func TestGRPCStopsGracefullyThenNot(t *testing.T) {
	for name, tt := range map[string]struct {
		grace   time.Duration
		release bool
	}{"a call within the grace is answered": {time.Hour, true}, "a call beyond it is cut off": {time.Nanosecond, false}} {
		t.Run(name, func(t *testing.T) {
			l, h := listen(t), newHeld()
			server := grpc.NewServer(grpc.WaitForHandlers(true))
			healthpb.RegisterHealthServer(server, health{held: h})
			ctx, stop := context.WithCancel(context.Background())
			served := make(chan error, 1)
			go func() { served <- serve.GRPC(ctx, server, l, tt.grace) }()
			answered := make(chan error, 1)
			go func() { answered <- check(t, l.Addr().String()) }()
			<-h.entered
			stop()
			if tt.release {
				close(h.release)
			}
			if err := <-answered; (err == nil) != tt.release {
				t.Errorf("call: %v", err)
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
}

func check(t *testing.T, address string) error {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Error(err)
		return err
	}
	defer connection.Close()
	_, err = healthpb.NewHealthClient(connection).Check(context.Background(), &healthpb.HealthCheckRequest{})
	return err
}

package blob

import (
	"context"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Options set the limits for calls to a store. The zero value has the defaults.
type Options struct {
	// Stall is the longest time in which a read may return no bytes; 0 is 30 s.
	Stall time.Duration
	// Write requests credentials that allow writing, for stores whose credentials have a scope.
	Write bool
	// Attempts is how often a request is tried before it fails; 0 is 3.
	Attempts int
}

// Stores opens buckets, each once. It is safe for concurrent use.
type Stores struct {
	options     Options
	credentials func() (credentialFile, error)
	client      *http.Client

	mu   sync.Mutex
	open map[string]*bucket // by what tells them apart; guarded by mu
}

// New returns Stores and opens nothing. The first opened bucket reads the credentials file in
// TRITON_CLOUD_CREDENTIAL_PATH.
func New(o Options) *Stores {
	if o.Stall == 0 {
		o.Stall = 30 * time.Second
	}
	if o.Attempts == 0 {
		o.Attempts = 3
	}
	return &Stores{
		options: o, client: newClient(o.Stall), open: make(map[string]*bucket),
		credentials: sync.OnceValues(func() (credentialFile, error) { return readCredentials(os.Getenv(credentialVariable)) }),
	}
}

func newClient(timeout time.Duration) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	bound(timeout)(transport)
	return &http.Client{Transport: transport}
}

// bound sets how a store is connected to.
func bound(timeout time.Duration) func(*http.Transport) {
	return func(t *http.Transport) {
		t.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
		t.ResponseHeaderTimeout = timeout
		t.MaxIdleConnsPerHost = 64
		t.DisableCompression = true // models do not compress, and lengths are what listings say
	}
}

// bucket is an open bucket.
type bucket struct {
	store
	stall time.Duration
	// anonymous says that there were no credentials.
	anonymous bool
}

// At opens a location in a store. It does not check that the location exists and is readable;
// the first read does. ctx bounds the search for credentials.
func (s *Stores) At(ctx context.Context, url string) (*Dir, error) {
	at, err := Parse(url)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.credentials()
	if err != nil {
		return nil, err
	}
	given, prefix := all.find(at)
	id := at.base() + "\x00" + prefix
	if b := s.open[id]; b != nil {
		return &Dir{bucket: b, at: at}, nil
	}
	b := &bucket{stall: s.options.Stall}
	if b.store, b.anonymous, err = at.provider().open(ctx, s, at, given); err != nil {
		return nil, err
	}
	if !b.anonymous { // else credentials may still come, as those of a role do
		s.open[id] = b
	}
	return &Dir{bucket: b, at: at}, nil
}

func unusable(at Location, err error, fix string) error {
	return errs.Wrap(errs.StoreDenied, hideSecrets(err), "%s: the credentials cannot be used: %s", at.base(), fix)
}

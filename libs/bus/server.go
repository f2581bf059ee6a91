package bus

import (
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"
	"golang.org/x/crypto/bcrypt"
)

const (
	// The embedded server serves one process or one host: these bounds are
	// far above what its buckets hold and far below what would hurt.
	embeddedMemory  = 64 << 20
	embeddedStore   = 4 << 30
	embeddedPending = 64 << 20
	readyTimeout    = 10 * time.Second
)

// embedded is a NATS server inside this process.
type embedded struct {
	*server.Server
	lock      *os.File
	temporary string // directory to remove at stop, or empty
	password  string // asked of who connects, or empty
}

func startEmbedded(cfg Config, log *zap.Logger) (*embedded, error) {
	e := &embedded{}
	dir, err := e.claimDir(cfg.Dir)
	if err != nil {
		return nil, errors.Join(err, e.stop())
	}
	if err := e.start(cfg, dir, log); err != nil {
		return nil, errors.Join(err, e.stop())
	}
	return e, nil
}

// claimDir makes the directory and locks it: two servers in one store would
// destroy it, and NATS itself does not check.
func (e *embedded) claimDir(dir string) (string, error) {
	var err error
	if dir == "" {
		if dir, err = os.MkdirTemp("", "nereid-bus-"); err != nil {
			return "", unavailable(err, "cannot make a temporary directory for the control plane's state: set a writable TMPDIR or name a directory")
		}
		e.temporary = dir
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", unavailable(err, "cannot make the control plane's directory %q: name a directory that can be written", dir)
	}
	e.lock, err = lockFile(filepath.Join(dir, "lock"))
	if errors.Is(err, errLocked) {
		return "", unavailable(err, "the control plane's directory %q is in use by another process: stop that process or name another directory", dir)
	}
	if err != nil {
		return "", unavailable(err, "cannot lock the control plane's directory %q: make it writable or name another one", dir)
	}
	return dir, nil
}

func (e *embedded) start(cfg Config, dir string, log *zap.Logger) error {
	opts, err := embeddedOptions(cfg, dir)
	if err != nil {
		return err
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return unavailable(err, "cannot set up the embedded NATS server")
	}
	e.Server, e.password = s, cfg.Password
	sink := &serverLog{log: log}
	s.SetLoggerV2(sink, false, false, false)
	s.Start()
	if err := sink.fatal(); err != nil && strings.HasPrefix(err.Error(), "Error listening") {
		return unavailable(err, "the NATS server cannot listen on %q: choose another address, or stop what uses it", cfg.Listen)
	} else if err != nil {
		return unavailable(err, "the embedded NATS server does not start on %q: check its space and permissions; move the directory away to start with nothing", dir)
	}
	if cfg.Listen != "" && !s.ReadyForConnections(readyTimeout) {
		return unavailable(nil, "the embedded NATS server does not listen on %q within %v", cfg.Listen, readyTimeout)
	}
	return nil
}

// embeddedUser is who connects to an embedded server that asks for a password.
const embeddedUser = "nereid"

func embeddedOptions(cfg Config, dir string) (*server.Options, error) {
	opts := &server.Options{
		ServerName:             cfg.Name,
		DontListen:             cfg.Listen == "",
		NoSigs:                 true,
		DisableJetStreamBanner: true,
		MaxPending:             embeddedPending,
		JetStream:              true,
		JetStreamMaxMemory:     embeddedMemory,
		JetStreamMaxStore:      embeddedStore,
		StoreDir:               dir,
		// A change that was acknowledged survives a power cut, where the directory
		// outlives the process. Ephemeral buckets opt out; see streamConfig.
		SyncAlways: cfg.Dir != "",
	}
	if cfg.Listen == "" {
		return opts, nil
	}
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, unavailable(err, "the embedded NATS server cannot listen on %q: write host:port", cfg.Listen)
	}
	opts.Host = host
	if cfg.Password != "" {
		// The server warns of passwords in plain text, wherever they come from.
		hash, err := bcrypt.GenerateFromPassword([]byte(cfg.Password), bcrypt.MinCost)
		if err != nil {
			return nil, unavailable(err, "the embedded NATS server cannot use the password")
		}
		opts.Username, opts.Password = embeddedUser, string(hash)
	}
	if opts.Port, err = strconv.Atoi(port); err != nil {
		return nil, unavailable(err, "the embedded NATS server cannot listen on %q: the port is a number", cfg.Listen)
	}
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	return opts, nil
}

func (e *embedded) url() string {
	if e.Addr() == nil {
		return ""
	}
	scheme, host, _ := strings.Cut(e.ClientURL(), "://")
	if e.password != "" {
		host = url.UserPassword(embeddedUser, e.password).String() + "@" + host
	}
	return scheme + "://" + host
}

// stop shuts the server down, waits, and unlocks the directory. It works on a
// server that started in part.
func (e *embedded) stop() error {
	if e.Server != nil {
		e.Shutdown()
		e.WaitForShutdown()
	}
	var err error
	if e.lock != nil {
		err = e.lock.Close() // ends the lock; the file stays, since removing it would race
	}
	if e.temporary != "" {
		err = errors.Join(err, os.RemoveAll(e.temporary))
	}
	if err != nil {
		return unavailable(err, "release the control plane's directory")
	}
	return nil
}

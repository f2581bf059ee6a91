package bus

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
)

// Why a server that answers cannot be used. Waiting changes neither.
var (
	// ErrCredentials says that the server rejects the credentials.
	ErrCredentials = errors.New("credentials refused")
	// ErrTLS says that the two ends do not agree on TLS.
	ErrTLS = errors.New("no agreement on TLS")
)

// explained says how to fix a failed connection, and marks the error with its
// kind. The library has no types for most of them.
func explained(err error) (remedy string, marked error) {
	switch text := err.Error(); {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		return "check that NATS accepts these credentials", fmt.Errorf("%w: %w", ErrCredentials, err)
	case errors.Is(err, nats.ErrSecureConnWanted), errors.Is(err, nats.ErrSecureConnRequired), strings.Contains(text, "tls:"), strings.Contains(text, "x509:"):
		return "check the certificates of both ends, and that NATS speaks TLS there", fmt.Errorf("%w: %w", ErrTLS, err)
	}
	return "check that NATS runs there", err
}

package bus

import (
	"bytes"
	"os"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Inbox is the prefix of the subjects on which the user with that public key
// receives responses. A user who may subscribe to nothing else reads no responses
// to others.
func Inbox(key string) string { return "_INBOX." + key }

// credentials prove to the server who this process is. The file holds either
// what NATS calls credentials, a token and its key, or a key alone. It is read
// again at each connection, so a change counts from the next. Errors have the
// reason config_invalid.
func credentials(path string) ([]nats.Option, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "cannot read the NATS credentials: %v. Name a file that this process may read, with a user's key in it", err)
	}
	pair, err := nkeys.ParseDecoratedUserNKey(content)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "%q holds no NATS credentials: it must hold a user's key (a line that begins with SU), with or without the token that belongs to it", path)
	}
	key, err := pair.PublicKey()
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "cannot use the NATS credentials in %q", path)
	}
	proof := nats.UserCredentials(path)
	if !bytes.Contains(content, []byte("-----BEGIN NATS USER JWT-----")) {
		if proof, err = nats.NkeyOptionFromSeed(path); err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "cannot use the NATS credentials in %q", path)
		}
	}
	return []nats.Option{proof, nats.CustomInboxPrefix(Inbox(key))}, nil
}

package access

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/nereid-serving/nereid/libs/errs"
)

// The files that [Write] makes, by their names under its directory.
const (
	// UsersFile is for the NATS server's configuration to include.
	UsersFile = "server/users.conf"
	// keyFile lies in a directory named after the service.
	keyFile = "nats.nk"
)

// KeyFile is the name, under the directory of [Write], of a service's key.
func KeyFile(service string) string { return filepath.Join(service, keyFile) }

// Write creates a key for each service in its own directory under dir, and [UsersFile], the
// server's list of permissions. Existing keys stay; their permissions become those of this
// release. Each file is complete or missing. Errors have the reason state_unavailable.
func Write(dir string) error {
	var users bytes.Buffer
	users.WriteString("# Who may write what, made from the services' keys by: nereid credentials\nauthorization {\n  users: [\n")
	for _, service := range Services() {
		key, err := publicKey(filepath.Join(dir, KeyFile(service.Name)))
		if err != nil {
			return errs.Wrap(errs.StateUnavailable, err, "cannot make the key of the %s: %v", service.Name, err)
		}
		writeUser(&users, service, key)
	}
	users.WriteString("  ]\n}\n")
	if err := replaceFile(filepath.Join(dir, UsersFile), users.Bytes()); err != nil {
		return errs.Wrap(errs.StateUnavailable, err, "cannot write the server's list of users: %v", err)
	}
	return nil
}

func writeUser(out *bytes.Buffer, s Service, key string) {
	allowed := s.Permissions(key)
	responses := ""
	if allowed.Responses {
		responses = "      allow_responses: {max: 1, expires: \"5s\"}\n"
	}
	fmt.Fprintf(out, "    # %s\n    {nkey: %s, permissions: {\n      publish: [%s]\n      subscribe: [%s]\n%s    }}\n",
		s.Name, key, quoted(allowed.Publish), quoted(allowed.Subscribe), responses)
}

func quoted(subjects []string) string {
	return `"` + strings.Join(subjects, `", "`) + `"`
}

// publicKey reads the key in the file, or makes one there.
func publicKey(path string) (string, error) {
	seed, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		seed, err = makeKey(path)
	}
	if err != nil {
		return "", err
	}
	pair, err := nkeys.ParseDecoratedUserNKey(seed)
	if err != nil {
		return "", fmt.Errorf("%s holds no user's key: %w; remove it to have a new one made", path, err)
	}
	return pair.PublicKey()
}

func makeKey(path string) ([]byte, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	seed, err := pair.Seed()
	if err != nil {
		return nil, err
	}
	return seed, replaceFile(path, append(bytes.Clone(seed), '\n'))
}

// replaceFile writes a file, readable by its owner alone, that is complete
// whenever it exists.
func replaceFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	fresh, err := os.CreateTemp(filepath.Dir(path), ".new-*") // with mode 0600
	if err != nil {
		return err
	}
	_, err = fresh.Write(content)
	err = errors.Join(err, fresh.Sync(), fresh.Close())
	if err == nil {
		err = os.Rename(fresh.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(fresh.Name()))
	}
	return nil
}

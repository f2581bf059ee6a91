package bus

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// maxKey bounds an escaped key or owner, in bytes: NATS breaks the connection of a
// client whose subject exceeds its control line (4 KiB by default).
const maxKey = 1024

// emptyKey stands for the key of no bytes, which NATS cannot name.
const emptyKey = "="

// OwnedKey returns the key of a name under an owner, whose own name must not contain a slash:
// see [CheckOwner].
func OwnedKey(owner, name string) string { return owner + "/" + name }

// CutKey returns the parts of an owned key.
func CutKey(key string) (owner, name string) {
	owner, name, _ = strings.Cut(key, "/")
	return owner, name
}

// CheckOwner refuses what cannot own keys, with the reason invalid_parameter.
func CheckOwner(owner string) error {
	if owner == "" || strings.Contains(owner, "/") {
		return errs.New(errs.InvalidParameter, "%q cannot be an id in the control plane's store: give one without a slash", owner)
	}
	return nil
}

// ownerEnd stands between the owner and the name in an escaped owned key. To
// NATS it ends a token: permissions and watches can name all keys of an owner.
const ownerEnd = "."

func (s Spec) escape(key string) (string, error) {
	if !s.KeyedByOwner {
		return escapeKey(key)
	}
	owner, name := CutKey(key)
	left, err := escapeOwner(owner)
	if err != nil {
		return "", err
	}
	right, err := escapeKey(name)
	if err != nil {
		return "", err
	}
	return left + ownerEnd + right, nil
}

func (s Spec) unescape(escaped string) (string, error) {
	if !s.KeyedByOwner {
		return unescapeKey(escaped)
	}
	left, right, _ := strings.Cut(escaped, ownerEnd)
	owner, err := unescapeKey(left)
	if err != nil {
		return "", err
	}
	name, err := unescapeKey(right)
	if err != nil {
		return "", err
	}
	return OwnedKey(owner, name), nil
}

// escapeOwner is escapeKey with no dot left.
func escapeOwner(owner string) (string, error) {
	escaped, err := escapeKey(owner)
	return strings.ReplaceAll(escaped, ".", "=2E"), err
}

// escapeKey writes a key of any bytes as a NATS key. Letters, digits, '-',
// '_' and '/' stand for themselves, and so does '.' except where NATS forbids
// it: first, last, or after another. Every other byte is '=' and two upper
// hexadecimal digits.
func escapeKey(key string) (string, error) {
	if key == "" {
		return emptyKey, nil
	}
	var out strings.Builder
	for i := range len(key) {
		c := key[i]
		if plainByte(c) || c == '.' && i > 0 && i < len(key)-1 && key[i-1] != '.' {
			out.WriteByte(c)
			continue
		}
		fmt.Fprintf(&out, "=%02X", c)
	}
	if out.Len() > maxKey {
		return "", errs.New(errs.InvalidParameter, "a name of %d bytes (%d escaped) is too long for the control plane's store: at most %d escaped", len(key), out.Len(), maxKey)
	}
	return out.String(), nil
}

func plainByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '/'
}

// unescapeKey reverses escapeKey.
func unescapeKey(escaped string) (string, error) {
	if escaped == emptyKey {
		return "", nil
	}
	parts := strings.Split(escaped, "=")
	out := []byte(parts[0])
	for _, part := range parts[1:] {
		if len(part) < 2 {
			return "", fmt.Errorf("key %q: '=' without two hexadecimal digits", escaped)
		}
		b, err := hex.DecodeString(part[:2])
		if err != nil {
			return "", fmt.Errorf("key %q: %w", escaped, err)
		}
		out = append(append(out, b...), part[2:]...)
	}
	return string(out), nil
}

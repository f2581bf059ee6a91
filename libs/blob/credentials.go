package blob

import (
	"encoding/json"
	"errors"
	"os"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// credentialVariable names a file with credentials by prefixes of URLs.
const credentialVariable = "TRITON_CLOUD_CREDENTIAL_PATH"

// credentialFile holds, by scheme, credentials for what begins with a prefix.
// The empty prefix is for all.
type credentialFile map[string]map[string]credential

// credential is one entry. Its fields are never printed.
type credential struct {
	// Those of S3.
	SecretKey    string `json:"secret_key"`
	KeyID        string `json:"key_id"`
	Region       string `json:"region"`
	SessionToken string `json:"session_token"`
	Profile      string `json:"profile"`
	// Those of Azure.
	Account    string `json:"account_str"`
	AccountKey string `json:"account_key"`
	AuthType   string `json:"auth_type"`
	ClientID   string `json:"client_id"`
	// file is that of Google.
	file string
}

func readCredentials(path string) (credentialFile, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "%s: the file %s cannot be read: %v", credentialVariable, path, errors.Unwrap(err))
	}
	c, err := parseCredentials(text)
	if err != nil { // which may quote the file
		return nil, errs.New(errs.ConfigInvalid,
			`%s: the file %s is not the JSON that was expected: write {"s3":{"PREFIX":{"key_id":"…","secret_key":"…","region":"…"}},"gs":{"PREFIX":"FILE"},"as":{"PREFIX":{"account_str":"…","account_key":"…"}}}`,
			credentialVariable, path)
	}
	return c, nil
}

func parseCredentials(text []byte) (credentialFile, error) {
	var schemes map[string]json.RawMessage
	if err := json.Unmarshal(text, &schemes); err != nil {
		return nil, err
	}
	all := make(credentialFile)
	for _, p := range providers() {
		if p.credential == nil || schemes[p.scheme] == nil {
			continue
		}
		var entries map[string]json.RawMessage
		if err := json.Unmarshal(schemes[p.scheme], &entries); err != nil {
			return nil, err
		}
		all[p.scheme] = make(map[string]credential)
		for prefix, entry := range entries {
			c, err := p.credential(entry)
			if err != nil {
				return nil, err
			}
			all[p.scheme][prefix] = c
		}
	}
	return all, nil
}

// find returns the credentials of the longest prefix that a place begins with,
// and that prefix; none if there is none.
func (c credentialFile) find(at Location) (found credential, prefix string) {
	return longest(c[at.Scheme], at.String())
}

// longest finds the value of the longest key that a URL begins with. Keys may
// leave out the scheme's own protocol: s3://http://host:80/b is s3://host:80/b.
func longest(by map[string]credential, url string) (value credential, prefix string) {
	found := false
	for key, v := range by {
		plain := strings.Replace(key, "s3://http://", "s3://", 1)
		if strings.HasPrefix(url, plain) && (!found || len(plain) > len(prefix)) {
			value, prefix, found = v, plain, true
		}
	}
	return value, prefix
}

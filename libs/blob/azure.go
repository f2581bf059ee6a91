package blob

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	azblob "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
)

// azureEndpointVariable names the server of all accounts, with the account's
// path, where that is not Azure's.
const azureEndpointVariable = "AZURE_STORAGE_SERVICE_ENDPOINT"

// azureStore is Azure Blob Storage.
func azureStore() provider {
	return provider{
		scheme: "as",
		forms:  "as://account/container/path",
		parse: func(l *Location, rest string) bool {
			l.Account, rest, _ = strings.Cut(rest, "/")
			return l.bucketAndPrefix(rest) && l.Account != ""
		},
		base: func(l Location) string { return "as://" + l.Account + "/" + l.Bucket },
		credential: func(entry json.RawMessage) (c credential, err error) {
			return c, json.Unmarshal(entry, &c)
		},
		open: openAzure,
		etag: func(o *blob.ListObject) string {
			var item container.BlobItem
			if !o.As(&item) || item.Properties == nil || item.Properties.ETag == nil {
				return ""
			}
			return string(*item.Properties.ETag)
		},
		onlyIf: func(as func(any) bool, tag string) error {
			var options *azblob.DownloadStreamOptions
			if as(&options) {
				match := azcore.ETag(tag)
				options.AccessConditions = &azblob.AccessConditions{ModifiedAccessConditions: &azblob.ModifiedAccessConditions{IfMatch: &match}}
			}
			return nil
		},
		rights: "the role Storage Blob Data Reader",
		response: func(err error) (r response, ok bool) {
			var e *azcore.ResponseError
			if !errors.As(err, &e) {
				return r, false
			}
			return response{status: e.StatusCode, code: e.ErrorCode}, true
		},
	}
}

func openAzure(_ context.Context, s *Stores, b *bucket, at Location, given credential) error {
	client, anonymous, err := azureClient(s, at, given)
	if err != nil {
		return unusable(at, err, "see AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY and AZURE_STORAGE_AUTH_TYPE, which is managed_identity or default")
	}
	b.anonymous = anonymous
	b.Bucket, err = azureblob.OpenBucket(nil, client, nil) //nolint:staticcheck // it asks nothing
	return err
}

func azureClient(s *Stores, at Location, given credential) (client *container.Client, anonymous bool, err error) {
	options := &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: s.client, Retry: policy.RetryOptions{MaxRetries: int32(s.options.Attempts - 1)},
	}}
	url := containerURL(at)
	if given == (credential{}) {
		given = azureEnvironment(at)
	}
	switch given.AuthType {
	case "managed_identity":
		o := &azidentity.ManagedIdentityCredentialOptions{}
		if given.ClientID != "" {
			o.ID = azidentity.ClientID(given.ClientID)
		}
		identity, err := azidentity.NewManagedIdentityCredential(o)
		if err != nil {
			return nil, false, err
		}
		client, err = container.NewClient(url, identity, options)
		return client, false, err
	case "default":
		identity, err := azidentity.NewDefaultAzureCredential(nil)
		if err != nil {
			return nil, false, err
		}
		client, err = container.NewClient(url, identity, options)
		return client, false, err
	}
	if given.AccountKey == "" {
		client, err = container.NewClientWithNoCredential(url, options)
		return client, true, err
	}
	key, err := container.NewSharedKeyCredential(cmp.Or(given.Account, accountOf(at)), given.AccountKey)
	if err != nil {
		return nil, false, err
	}
	client, err = container.NewClientWithSharedKeyCredential(url, key, options)
	return client, false, err
}

// azureEnvironment gives the credentials of the environment. A key is for the
// account that is named beside it, if one is.
func azureEnvironment(at Location) credential {
	c := credential{
		Account: os.Getenv("AZURE_STORAGE_ACCOUNT"), AccountKey: os.Getenv("AZURE_STORAGE_KEY"),
		AuthType: os.Getenv("AZURE_STORAGE_AUTH_TYPE"), ClientID: os.Getenv("AZURE_STORAGE_CLIENT_ID"),
	}
	if c.Account != "" && c.Account != accountOf(at) {
		c.AccountKey = ""
	}
	return c
}

// accountOf is the account's name alone: a URL may also give its host.
func accountOf(at Location) string {
	name, _, _ := strings.Cut(at.Account, ".")
	return name
}

func containerURL(at Location) string {
	if endpoint := os.Getenv(azureEndpointVariable); endpoint != "" {
		return strings.TrimRight(endpoint, "/") + "/" + at.Bucket
	}
	host := at.Account
	if !strings.Contains(host, ".") {
		host += ".blob.core.windows.net"
	}
	return "https://" + host + "/" + at.Bucket
}

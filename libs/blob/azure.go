package blob

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	azblob "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
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
		open:   openAzure,
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

func openAzure(_ context.Context, s *Stores, at Location, given credential) (b store, anonymous bool, err error) {
	client, anonymous, err := azureClient(s, at, given)
	if err != nil {
		return nil, false, unusable(at, err, "see AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY and AZURE_STORAGE_AUTH_TYPE, which is managed_identity or default")
	}
	return azureContainer{client}, anonymous, nil
}

// azureContainer is one container of an account.
type azureContainer struct{ client *container.Client }

func (c azureContainer) list(ctx context.Context, prefix, token string) (page []Object, next string, err error) {
	options := &container.ListBlobsFlatOptions{Prefix: &prefix, MaxResults: to.Ptr[int32](pageSize)}
	if token != "" {
		options.Marker = &token
	}
	response, err := c.client.NewListBlobsFlatPager(options).NextPage(ctx)
	if err != nil {
		return nil, "", err
	}
	if response.Segment != nil {
		for _, item := range response.Segment.BlobItems {
			if item.Name == nil || item.Properties == nil {
				continue
			}
			o := Object{Name: *item.Name}
			if p := item.Properties; p.ETag != nil {
				o.ETag = string(*p.ETag)
			}
			if size := item.Properties.ContentLength; size != nil {
				o.Size = *size
			}
			if modified := item.Properties.LastModified; modified != nil {
				o.Modified = *modified
			}
			page = append(page, o)
		}
	}
	if response.NextMarker != nil {
		next = *response.NextMarker
	}
	return page, next, nil
}

func (c azureContainer) read(ctx context.Context, key, tag string, offset, length int64) (body io.ReadCloser, served string, err error) {
	options := &azblob.DownloadStreamOptions{Range: azblob.HTTPRange{Offset: offset, Count: length}}
	if tag != "" {
		options.AccessConditions = &azblob.AccessConditions{
			ModifiedAccessConditions: &azblob.ModifiedAccessConditions{IfMatch: to.Ptr(azcore.ETag(tag))},
		}
	}
	response, err := c.client.NewBlobClient(key).DownloadStream(ctx, options)
	return response.Body, "", err
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

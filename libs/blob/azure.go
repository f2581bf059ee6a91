package blob

import (
	"cmp"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob/azureblob"
)

func (s *Stores) openAzure(b *bucket, at Location, given credential) error {
	client, anonymous, err := s.azureClient(at, given)
	if err != nil {
		return unusable(at, err, "see AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY and AZURE_STORAGE_AUTH_TYPE, which is managed_identity or default")
	}
	b.anonymous = anonymous
	b.Bucket, err = azureblob.OpenBucket(nil, client, nil) //nolint:staticcheck // it asks nothing
	return err
}

func (s *Stores) azureClient(at Location, given credential) (client *container.Client, anonymous bool, err error) {
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
	host := at.Account
	if !strings.Contains(host, ".") {
		host += ".blob.core.windows.net"
	}
	return "https://" + host + "/" + at.Bucket
}

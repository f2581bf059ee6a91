package infer

import (
	"cmp"
	"fmt"
	"strings"
)

// ModelID identifies a model. Models with the same name have different namespaces.
type ModelID struct {
	// Namespace is the absolute path of the model's repository; empty where
	// the models of all repositories share one set of names.
	Namespace string
	// Name is the name that clients use. It holds no slash.
	Name string
}

// String writes the id as Triton does in its messages: namespace::name, or
// the name alone where there are no namespaces.
func (id ModelID) String() string {
	if id.Namespace == "" {
		return id.Name
	}
	return id.Namespace + "::" + id.Name
}

// Key writes the id as the key of the bucket models; [ParseModelID] reads it.
// It is the one spelling that tells all ids apart, whatever their parts hold.
func (id ModelID) Key() string {
	if id.Namespace == "" {
		return id.Name
	}
	return id.Namespace + "/" + id.Name
}

// ParseModelID reads a key of the bucket models.
func ParseModelID(key string) ModelID {
	slash := strings.LastIndexByte(key, '/')
	if slash < 0 {
		return ModelID{Name: key}
	}
	return ModelID{Namespace: key[:slash], Name: key[slash+1:]}
}

// Version names a loaded content of one of the model's versions.
func (id ModelID) Version(number int64, generation uint64) ModelRef {
	return ModelRef{Namespace: id.Namespace, Name: id.Name, Version: number, Generation: generation}
}

// Compare orders ids by name and then namespace, so that models of one name
// stand together.
func (id ModelID) Compare(other ModelID) int {
	return cmp.Or(cmp.Compare(id.Name, other.Name), cmp.Compare(id.Namespace, other.Namespace))
}

// ModelRef names one loaded content of a model version.
type ModelRef struct {
	// Namespace and Name are the model's: see [ModelID].
	Namespace, Name string
	Version         int64
	// Generation grows each time the version's files or configuration
	// change, so that the old content can drain while the new one serves.
	Generation uint64
}

// ID names the content's model.
func (m ModelRef) ID() ModelID { return ModelID{Namespace: m.Namespace, Name: m.Name} }

// Compare orders contents by model, version and generation.
func (m ModelRef) Compare(other ModelRef) int {
	return cmp.Or(m.ID().Compare(other.ID()), cmp.Compare(m.Version, other.Version), cmp.Compare(m.Generation, other.Generation))
}

// String writes the reference for logs: model/version@generation.
func (m ModelRef) String() string { return fmt.Sprintf("%s/%d@%d", m.ID(), m.Version, m.Generation) }

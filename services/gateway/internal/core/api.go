package core

import (
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// ServerInfo is the server's metadata.
type ServerInfo struct {
	// Name is the server's name; Version is Nereid's version.
	Name, Version string
	// Extensions are the protocol extensions of this server, in Triton's order.
	Extensions []string
}

// Metadata describes a model to clients.
type Metadata struct {
	Name            string
	Versions        []string
	Platform        string
	Inputs, Outputs []TensorMetadata
}

// TensorMetadata describes an input or output. In Shape, -1 is a dimension of any size, and the batch dimension
// comes first.
type TensorMetadata struct {
	Name, Datatype string
	Shape          []int64
}

// IndexEntry is one line of the repository index.
type IndexEntry struct {
	// Namespace is the model's namespace; it is not sent to clients.
	Namespace, Name        string
	Version, State, Reason string
}

// ID returns the id of the entry's model.
func (e IndexEntry) ID() infer.ModelID { return infer.ModelID{Namespace: e.Namespace, Name: e.Name} }

func describe(c *modelconfig.Config, list []modelconfig.IO) []TensorMetadata {
	out := make([]TensorMetadata, len(list))
	for i := range list {
		out[i] = TensorMetadata{Name: list[i].Name, Datatype: list[i].Datatype.String(), Shape: c.ClientShape(&list[i])}
	}
	return out
}

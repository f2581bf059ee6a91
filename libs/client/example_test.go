package client_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/tensor"
)

func Example() {
	// A server that doubles; in earnest this is nereid serve, or any other that
	// speaks the protocol.
	server := httptest.NewServer(&respondent{
		json:   `{"model_name":"double","model_version":"1","outputs":[{"name":"y","datatype":"INT8","shape":[2],"parameters":{"binary_data_size":2}}]}`,
		binary: "\x02\x04",
	})
	defer server.Close()

	c := client.HTTP(server.URL, client.Options{})
	defer c.Close()
	response, err := c.Infer(context.Background(), &client.Request{
		Model: "double",
		Inputs: []client.Tensor{{
			Description: client.Description{Name: "x", Datatype: tensor.Int8, Shape: tensor.Shape{2}},
			Data:        []byte{1, 2},
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range response.Outputs {
		fmt.Printf("%s %v %v %v\n", t.Name, t.Datatype, t.Shape, t.Data)
	}
	// Output: y INT8 [2] [2 4]
}

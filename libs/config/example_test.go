package config_test

import (
	"fmt"

	"github.com/alecthomas/kong"

	"github.com/nereid-serving/nereid/libs/config"
)

// A setting has one name as a flag, as a variable and in a file; the flag goes
// first.
func Example() {
	var settings struct {
		HTTPPort  int           `name:"http-port" default:"8000"`
		AllowHTTP config.Switch `name:"allow-http" default:"true"`
	}
	args := []string{"--allow-http=false"}
	env := config.Lookup([]string{"NEREID_HTTP_PORT=9000"})
	read, err := config.Read(args, env)
	if err != nil {
		fmt.Println(err)
		return
	}
	parser, err := kong.New(&settings, kong.Resolvers(read), config.Numbers())
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := parser.Parse(args); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(settings.HTTPPort, read.Source("http-port"))
	fmt.Println(settings.AllowHTTP)
	// Output:
	// 9000 NEREID_HTTP_PORT
	// false
}

func ExampleNamed() {
	all, err := config.Named("backend-config", []string{"onnxruntime,intra_op_thread_count=2", ",default-max-batch-size=8"})
	fmt.Println(all["onnxruntime"], all[""], err)
	_, err = config.Named("backend-config", []string{"onnxruntime"})
	fmt.Println(err)
	// Output:
	// map[intra_op_thread_count:2] map[default-max-batch-size:8] <nil>
	// --backend-config=onnxruntime: want a name and a setting, such as NAME,KEY=VALUE
}

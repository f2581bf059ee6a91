// Command gateway serves clients over HTTP and gRPC.
package main

import (
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/gateway/command"
)

func main() { process.Main(command.Program()) }

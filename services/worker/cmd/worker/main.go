// Command worker runs models on one device.
package main

import (
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/worker/command"
)

func main() { process.Main(command.Program()) }

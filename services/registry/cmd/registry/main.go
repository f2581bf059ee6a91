// Command registry knows which models exist and decides where they run.
package main

import (
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/registry/command"
)

func main() { process.Main(command.Program()) }

// Command scheduler decides, for one pool, which request runs when and where.
package main

import (
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/scheduler/command"
)

func main() { process.Main(command.Program()) }

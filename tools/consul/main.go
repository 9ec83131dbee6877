// Command consul is the agent and the "lock" command of Consul. It is built from its module,
// because that needs no other download.
package main

import (
	"fmt"
	"os"

	"github.com/hashicorp/consul/command/agent"
	"github.com/hashicorp/consul/command/cli"
	"github.com/hashicorp/consul/command/lock"
	mcli "github.com/mitchellh/cli"
)

func main() {
	ui := &cli.BasicUI{BasicUi: mcli.BasicUi{Writer: os.Stdout, ErrorWriter: os.Stderr}}
	shutdown := make(chan struct{})
	commands := mcli.CLI{
		Name: "consul",
		Args: os.Args[1:],
		Commands: map[string]mcli.CommandFactory{
			"agent": func() (mcli.Command, error) { return agent.New(ui), nil },
			"lock":  func() (mcli.Command, error) { return lock.New(ui, shutdown), nil },
		},
	}
	code, err := commands.Run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
)

// sizeFlags are the flags of the agent that set the sizes of maps, by the fields of its
// configuration.
var sizeFlags = map[string]string{
	"tables.maxAffinityEntries": "--max-affinity-entries",
	"tables.maxBackends":        "--max-backends",
	"tables.maxClients":         "--max-clients",
	"tables.maxFlows":           "--max-flows",
	"tables.maxFrontends":       "--max-frontends",
	"tables.maxServices":        "--max-services",
	"tables.maxSlots":           "--max-slots",
	"tables.maxSourceRanges":    "--max-source-ranges",
	"tables.maxUDPPeers":        "--max-udp-peers",
}

// parsedFlag is a flag that is parsed when it is given; its value is what was given.
type parsedFlag struct {
	parse func(string) error
	value string
}

// String is the flag's value.
func (p *parsedFlag) String() string { return p.value }

// Set parses the flag.
func (p *parsedFlag) Set(value string) error {
	p.value = value
	return p.parse(value)
}

// Type is shown in the help.
func (p *parsedFlag) Type() string { return "string" }

// addConnectionFlags adds the flags that say which connections are meant; what is shown of them is
// called what. The Service is a flag of its own.
func addConnectionFlags(flags *pflag.FlagSet, f *inspect.ConnectionFilter, what string) {
	flags.Var(&parsedFlag{parse: func(s string) (err error) {
		f.Client, err = inspect.ParseAddrFilter(s)
		return err
	}}, "client", "only "+what+" of this client, an `ADDRESS`, CIDR or ADDRESS:PORT")
	flags.Var(&parsedFlag{parse: func(s string) (err error) {
		f.Backend, err = inspect.ParseAddrFilter(s)
		return err
	}}, "backend", "only "+what+" with this backend, an `ADDRESS`, CIDR or ADDRESS:PORT")
	flags.Var(&parsedFlag{parse: func(s string) (err error) {
		f.Protocol, err = model.ParseProtocol(strings.ToUpper(s))
		return err
	}}, "protocol", "only "+what+" of this `PROTOCOL`: TCP, UDP, SCTP")
}

// completeProtocols offers the protocols for the flag of that name.
func completeProtocols(cmd *cobra.Command) {
	must(cmd.RegisterFlagCompletionFunc("protocol", cobra.FixedCompletions([]string{"TCP", "UDP", "SCTP"}, cobra.ShellCompDirectiveNoFileComp)))
}

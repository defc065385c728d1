package cli

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

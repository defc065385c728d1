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

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/version"
)

// versionInfo says which beeline command this is.
type versionInfo struct {
	Version string `json:"version"`
	Schema  int    `json:"schema"` // version of the maps' layout that it reads
}

func (c *command) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this command",
		Long: `Print the version of this command and of the maps' layout that it reads.

beeline status shows the version of the agent.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{version.String(), bpfmap.Schema}
			return c.print(v, func(bool) string {
				return fmt.Sprintf("beeline %s (schema %d)\n", v.Version, v.Schema)
			})
		},
	}
}

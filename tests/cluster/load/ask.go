package main

import (
	"encoding/json"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

func newAsk() *cobra.Command {
	var targets []string
	cmd := &cobra.Command{
		Use:   "ask",
		Short: "Make one request to each target at once; print what was counted of each, as JSON",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return json.NewEncoder(os.Stdout).Encode(askAll(targets))
		},
	}
	cmd.Flags().StringSliceVar(&targets, "targets", nil, "URLs to ask; udp://HOST:PORT by a datagram")
	return cmd
}

// askAll asks each target once and returns what it counted, by target.
func askAll(targets []string) map[string]loadstats.Stats {
	runners := make([]runner, len(targets))
	var wg sync.WaitGroup
	for i, target := range targets {
		wg.Go(func() {
			if strings.HasPrefix(target, datagramScheme) {
				runners[i].oneDatagram(target, 0)
			} else {
				runners[i].oneShort(target)
			}
		})
	}
	wg.Wait()
	all := make(map[string]loadstats.Stats)
	for i, target := range targets {
		all[target] = runners[i].count.read()
	}
	return all
}

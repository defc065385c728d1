package lab

import (
	"os"
	"regexp"
	"strings"
)

// lossCounters are the kernel's counters of packets that a stack has not passed on.
var lossCounters = regexp.MustCompile(`(?i)discard|drop|err|noroute|noports|fail|overflow`)

// LogLosses logs what the kernel counts as lost in the namespace, by its protocols and devices.
func (n *Namespace) LogLosses(name string) {
	var lines []string
	_ = n.Run(func() error {
		for _, file := range []string{"snmp", "netstat", "snmp6"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			var names []string
			for line := range strings.Lines(string(text)) {
				columns := strings.Fields(line)
				switch {
				case file == "snmp6":
					lines = appendLoss(lines, columns[0], columns[1])
				case names == nil:
					names = columns
				default:
					for i := 1; i < min(len(names), len(columns)); i++ {
						lines = appendLoss(lines, names[0]+names[i], columns[i])
					}
					names = nil
				}
			}
		}
		text, err := os.ReadFile("/proc/thread-self/net/dev")
		for line := range strings.Lines(string(text)) {
			if columns := strings.Fields(line); len(columns) > 12 {
				lines = appendLoss(lines, columns[0]+"rx_drop", columns[4])
				lines = appendLoss(lines, columns[0]+"tx_drop", columns[12])
			}
		}
		return err
	})
	n.t.Logf("%s has lost: %s", name, strings.Join(lines, ", "))
}

func appendLoss(lines []string, name, count string) []string {
	if count == "0" || !lossCounters.MatchString(name) {
		return lines
	}
	return append(lines, name+" "+count)
}

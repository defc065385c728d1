package datapath

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// defaultICMPRate is that of the kernel.
const defaultICMPRate = 1000

// icmpRate returns how many ICMP errors a second the kernel sends from the network namespace of
// the calling thread. Former kernels tell it in the node's own alone.
func icmpRate() uint32 {
	rate, err := readICMPRate("/proc/sys/net/ipv4/icmp_msgs_per_sec")
	if err != nil {
		klog.InfoS("The node's limit of ICMP errors is not known, the kernel's default is taken", "perSecond", defaultICMPRate, "err", err)
		return defaultICMPRate
	}
	return rate
}

func readICMPRate(path string) (uint32, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	rate, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return uint32(rate), nil
}

// icmpLimit returns how many ICMP errors a slice of time may have at a rate per second, at least one
// unless there may be none.
func icmpLimit(rate uint32) uint32 {
	const slice = uint64(1) << bpf.SockBlAnswerLimitsBL_ANSWER_SHIFT
	return uint32((uint64(rate)*slice + uint64(time.Second) - 1) / uint64(time.Second))
}

package flow

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestFlags sets what kube-proxy's flags say; 0 leaves the default.
func TestFlags(t *testing.T) {
	timeouts := DefaultTimeouts
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	timeouts.AddFlags(flags)
	check(t, flags.Parse([]string{
		"--conntrack-tcp-timeout-established=24h", "--conntrack-tcp-timeout-close-wait=1h",
		"--conntrack-udp-timeout=0", "--conntrack-udp-timeout-stream=3m",
	}))
	check(t, timeouts.Check())
	want := DefaultTimeouts
	want.TCPEstablished, want.TCPCloseWait, want.UDPStream = 24*time.Hour, time.Hour, 3*time.Minute
	if got := New(Options{Timeouts: timeouts}).Timeouts; got != want {
		t.Errorf("time-outs are %+v, want %+v", got, want)
	}
}

// TestCheck names the flags of time-outs that cannot be.
func TestCheck(t *testing.T) {
	good := DefaultTimeouts
	check(t, good.Check())
	bad := DefaultTimeouts
	bad.UDP, bad.TCPEstablished = time.Millisecond, -time.Hour
	err := bad.Check()
	if err == nil || !strings.Contains(err.Error(), "--conntrack-udp-timeout: 1ms") ||
		!strings.Contains(err.Error(), "--conntrack-tcp-timeout-established: -1h0m0s") {
		t.Errorf("error %v", err)
	}
}

package main

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/template"

	"golang.org/x/sys/unix"
)

// The report and its plot, relative to the repository's root.
const (
	reportDir  = "tests/bench"
	reportFile = "RESULTS.md"
	plotFile   = "results.svg"
)

var report = template.Must(template.New("report").Funcs(template.FuncMap{
	"number": number, "span": span,
}).Parse(`# Speed of Beeline

Written by ` + "`make bench`" + `; not edited by hand. {{.Met}} of {{.Barred}} bars are met.

![Each figure as a share of its bar](` + plotFile + `)

## Machine

{{.CPU}}, {{.Cores}} cores{{if .Virtual}}, a virtual machine{{end}}; Linux {{.Kernel}}; {{.Go}}. Other
processes took {{printf "%.0f" .Others}} % of the CPUs' time while it was measured, other virtual machines
{{printf "%.0f" .Stolen}} %.{{if .Busy}} **That is enough to lengthen percentiles and to blur rates: take those with
care.**{{end}}

## Figures
{{range .Sections}}
### {{.Title}}

| | value | 10th percentile of the samples | middle half of them | lowest to highest run | bar | |
|---|---|---|---|---|---|---|
{{range .Figures}}| {{.Title}} | {{number .Value}} {{.Unit}} | {{.Tenth}} | {{.Spread}} | {{span .Runs}} | {{.Bar}} | {{.Verdict}} |
{{end}}{{end}}
## Method

Each benchmark runs in a process with network, mount and pid namespaces and a
cgroup of its own, several times. What is compared takes turns in short batches,
in random order within each round, and only times of one round are set against
each other: a figure is the median of the differences (or ratios) of the rounds of
a run, and of those of the runs the middle one. A figure that is called a percentile
is that of all samples.

**UDP connect().** Thread CPU time of a loop of system calls, by a thread of its own
on one CPU, with 10,000 dual-stack Services of 10 endpoints in the tables, a tenth
of them NodePorts with session affinity. The socket's cgroup decides what runs:
nothing, a program of two instructions that allows everything, or Beeline. The calls
without Beeline connect straight to as many endpoints, over the same route, as
Beeline chooses from, so that the kernel's work behind the hook is the same. While
any cgroup of the machine has a program at the hook, the kernel takes the socket's
lock on its way to it everywhere; "no program" includes that.

**Queries.** Likewise for what a resolver does, in the same tables: it makes a socket, asks,
receives the answer and closes the socket. One thread is client and server, whose part
is the same with and without Beeline. What Beeline adds is set against a cgroup without
any program, so all of its hooks count, also that of closing the socket.

**Events.** What beeline monitor adds to a connect(), to the first packet of a connection and later ones, and to a
packet that is dropped, in the tables and by the loops of these: with nobody who listens, with a listener that may have
1,000 events a second and had them, and with one that is told each. A million packets a second of which each costs 20 ns
more take 2 % of a CPU.
Packets that come in by a device: frames of 64 bytes that a program puts on its wire, as for 64-byte UDP, to a NodePort
without an endpoint on the node. What a packet takes of the sending thread's CPU time, less the making of the frame, is its cost.

**TCP.** Connections within the namespace, client and server each on a CPU of their
own. The straight connection is made in a cgroup without any program. The rate of
connections counts the client's time; closed ones are not kept in TIME_WAIT, so that
ports do not run out. Bytes go over one connection that stays open; "within noise"
is two standard errors of the median.

**A slow endpoint.** A client connects, sends a byte, receives one and closes, one connection after the
other, at Services of ten endpoints of which one is slow: its packets go through a link that delays them, or its
application waits before it answers. Batches of the algorithms take turns. Wall-clock time, as the client sees it.

**Packets.** Thread CPU time of BPF_PROG_TEST_RUN with many repetitions. A program
restores the packet and tail-calls the one that is measured, which is bl_ingress as it
is shipped; what an empty program takes in its place is subtracted. "Ingress and egress" adds
bl_egress, which gets what bl_ingress has sent or passed on at the device that it leaves by. The floor reads
the headers, looks one key of 40 bytes up and writes other addresses and ports with
right checksums, all by direct access to the packet. Packets are TCP without payload
unless it says otherwise, in the tables that connect() is measured with; those of a new
flow have a source of their own each time, in a flow table that is full, and two
inserts into a full table of that size are measured beside them. They stay below the
share of the table that half-open flows have. What the kernel does with the packet
afterwards does not count.

**XDP.** Likewise for bl_xdp, beside an empty XDP program and a floor that sends the
packet back (XDP_TX). All routes lead over a gateway whose MAC address is known. Many
flows: packets of 65,536 established connections take turns, all of them in a batch; the
floor beside them looks the same keys up in a hash table that holds these, each net of an
empty program that gets the same packets. Direct server return: from IPv4 and IPv6 into
a tunnel over IPv4; the next run takes the outer headers off again, which counts. Large
tables: 50,000 Services of both families
with 500,000 endpoints, a slot each, beside tables that hold two of these Services.

**NodePort.** A client, nodes and another machine as namespaces on one bridge.
The nodes are alike but for who serves them: the agent as it is shipped, and kube-proxy
of the same release as the API server in two modes; all get 5,000 Services of two
endpoints from that API server, a tenth of them NodePorts. One thread connects and
closes, one connection after the other. The connection tracking of kube-proxy's nodes
forgets closed connections after a second, so that its table does not fill up.

**64-byte UDP.** In the same network, with a node more that runs Beeline with native XDP
and one that only routes. Datagrams of 256 ports of the client go to a NodePort whose
endpoint is on the other machine, at the node that routes to that machine itself, over
veth with GRO. A program hands the kernel frames (BPF_F_TEST_XDP_LIVE_FRAMES), which it
puts on the node's wire; at the same end of the wire another one counts and drops what
the node sends on. All of that happens in the sending thread, in interrupt context: what
a packet takes of its CPU time, less what making the frame takes, is what a packet costs
one core from wire to wire, both wires included. Batches of which another thread has
forwarded more than one packet in a hundred are repeated.

**Control plane.** The agent as it is shipped, against a real kube-apiserver and
etcd that hold the Services (IPv4, one port, slices of at most 100 endpoints with
node, zone and pod). A proxy between the two notes when data arrive at the agent: a
list has arrived with its last data. "In the kernel" is when the agent logs the end
of its first sync. Single endpoints are replaced through the API; the endpoint is one
that a client with session affinity is bound to, so one connect() tells whether the
change is in effect, however many endpoints the Service has. The client looks about
every 20 us. API server, etcd, proxy, client and agent share the machine's cores; the
client collects its garbage between changes. CPU time for a change is that of all threads
of the agent, decoding included. Its growth is that between the agent's runs against two
API servers, which take turns.

**Idle agent.** The CPU time of the agent as it is shipped, in 20 s in which nothing
changes, with veths that are pods' and whose packets are served.

**Memory** is what the kernel says of each map (memlock in its fdinfo).
`))

// section is a part of the table.
type section struct {
	Title   string
	Figures []row
}

// row is a figure as the report shows it.
type row struct {
	Title, Unit, Tenth, Spread, Bar, Verdict string
	Value                                    float64
	Runs                                     [2]float64
}

// machine is what the figures were measured on.
type machine struct {
	CPU, Kernel, Go string
	Cores           int
	Virtual         bool
	Others, Stolen  float64 // percent
}

// Busy reports whether the figures have suffered.
func (m machine) Busy() bool { return m.Others+m.Stolen > 5 }

// look returns what can be said of this machine, without naming it.
func look(u usage) (machine, error) {
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return machine{}, err
	}
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return machine{}, err
	}
	m := machine{
		Kernel:  unix.ByteSliceToString(kernel.Release[:]),
		Go:      runtime.Version(),
		Cores:   runtime.NumCPU(),
		Virtual: strings.Contains(string(cpuinfo), " hypervisor "),
	}
	for line := range strings.Lines(string(cpuinfo)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
		}
	}
	m.Others, m.Stolen = u.percent()
	return m, nil
}

// writeReport writes the report and its plot.
func writeReport(m machine, figures []figure) error {
	out := new(strings.Builder)
	if err := writeText(out, m, figures); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(reportDir, reportFile), []byte(out.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(reportDir, plotFile), []byte(plot(figures)), 0o644)
}

func writeText(w io.Writer, m machine, figures []figure) error {
	met, barred := count(figures)
	return report.Execute(w, struct {
		machine
		Met, Barred int
		Sections    []section
	}{m, met, barred, sections(figures)})
}

func count(figures []figure) (met, barred int) {
	for _, f := range figures {
		if f.bound == none {
			continue
		}
		barred++
		if f.met() {
			met++
		}
	}
	return met, barred
}

// sections groups neighbours.
func sections(figures []figure) []section {
	var list []section
	for _, f := range figures {
		if len(list) == 0 || list[len(list)-1].Title != f.section {
			list = append(list, section{Title: f.section})
		}
		last := &list[len(list)-1]
		verdict := f.verdict()
		if verdict == "missed" {
			verdict = "**missed**"
		}
		last.Figures = append(last.Figures, row{
			Title: f.title, Unit: f.unit, Tenth: f.tenthText(), Spread: f.spread(), Bar: f.barText(), Verdict: verdict,
			Value: f.value, Runs: f.runs,
		})
	}
	return list
}

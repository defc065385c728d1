package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// userHz is the unit of /proc/stat: proc(5), the same on every architecture that
// Go runs on.
const userHz = 100

// usage is where the machine's CPU time went.
type usage struct {
	total, own time.Duration
	others     time.Duration // other processes of the machine
	stolen     time.Duration // other virtual machines
}

func (u usage) add(o usage) usage {
	return usage{u.total + o.total, u.own + o.own, u.others + o.others, u.stolen + o.stolen}
}

func (u usage) sub(o usage) usage {
	return usage{u.total - o.total, u.own - o.own, u.others - o.others, u.stolen - o.stolen}
}

// percent returns the share of others and of what was stolen.
func (u usage) percent() (others, stolen float64) {
	return 100 * max(u.others, 0).Seconds() / u.total.Seconds(), 100 * u.stolen.Seconds() / u.total.Seconds()
}

// readUsage returns the usage since the machine's start; own is that of a cgroup
// and those below.
func readUsage(cgroup string) (usage, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return usage{}, err
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	var user, nice, system, idle, iowait, irq, softirq, steal int64
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		return usage{}, fmt.Errorf("/proc/stat: %w", err)
	}
	own, err := cgroupTime(cgroup)
	if err != nil {
		return usage{}, err
	}
	const tick = time.Second / userHz
	busy := user + nice + system + irq + softirq
	return usage{
		total:  time.Duration(busy+idle+iowait+steal) * tick,
		own:    own,
		others: time.Duration(busy)*tick - own,
		stolen: time.Duration(steal) * tick,
	}, nil
}

// cgroupTime returns the CPU time that the processes of a cgroup have used.
func cgroupTime(cgroup string) (time.Duration, error) {
	path := filepath.Join(cgroup, "cpu.stat")
	stat, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(stat)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == "usage_usec" {
			usec, err := strconv.ParseInt(value, 10, 64)
			return time.Duration(usec) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("%s has no usage_usec", path)
}

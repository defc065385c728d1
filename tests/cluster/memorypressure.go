package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// memoryGroup is the cgroup that bounds the memory of a process, of either version.
type memoryGroup struct {
	limit, used string // files
	unlimited   string // what to write to limit for none
}

// memoryGroupOf returns the cgroup of a process.
func (c *cluster) memoryGroupOf(pid int) (memoryGroup, error) {
	lines, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return memoryGroup{}, err
	}
	var group memoryGroup
	for line := range strings.Lines(string(lines)) {
		field := strings.SplitN(strings.TrimSpace(line), ":", 3)
		i := slices.IndexFunc(c.Hierarchies, func(h hierarchy) bool { return h.Options == field[1] })
		if i < 0 {
			continue
		}
		dir := filepath.Join(c.Hierarchies[i].Mount, field[2])
		switch {
		case slices.Contains(strings.Split(field[1], ","), "memory"):
			return memoryGroup{filepath.Join(dir, "memory.limit_in_bytes"), filepath.Join(dir, "memory.usage_in_bytes"), "-1"}, nil
		case field[1] == "":
			group = memoryGroup{filepath.Join(dir, "memory.max"), filepath.Join(dir, "memory.current"), "max"}
		}
	}
	if _, err := os.Stat(group.limit); err != nil {
		return group, fmt.Errorf("process %d has no cgroup that bounds its memory: %w", pid, err)
	}
	return group, nil
}

// squeeze lets the processes use so many bytes more than they do.
func (g memoryGroup) squeeze(more int) error {
	text, err := os.ReadFile(g.used)
	if err != nil {
		return err
	}
	used, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	return os.WriteFile(g.limit, []byte(strconv.Itoa(used+more)), 0)
}

// release takes the limit away. It is no error when the cgroup went with a process that was
// killed.
func (g memoryGroup) release() error {
	err := os.WriteFile(g.limit, []byte(g.unlimited), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

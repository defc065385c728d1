package main

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// attachEmpty attaches a program that does nothing, until the process ends.
func attachEmpty(cgroup string, at ebpf.AttachType) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.CGroupSockAddr,
		AttachType:   at,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
		License:      "GPL",
	})
	if err != nil {
		return fmt.Errorf("load an empty program: %w", err)
	}
	hook, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: at, Program: program})
	if err != nil {
		return fmt.Errorf("attach an empty program: %w", err)
	}
	keep = append(keep, program, hook)
	return nil
}

// keep holds what must not be closed by the garbage collector.
var keep []any

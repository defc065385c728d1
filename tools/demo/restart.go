package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// restart shows that traffic does not need the agent.
func (p *play) restart(ctx context.Context) error {
	p.scene("The agent is killed while requests go on")
	before, err := p.stickyServer(ctx)
	if err != nil {
		return err
	}
	load, err := p.startLoad(ctx, clients[1].name, p.web.url())
	if err != nil {
		return err
	}
	phases, err := p.killAndRestart(ctx)
	if err != nil {
		return err
	}
	requests, err := load.stop()
	if err != nil {
		return err
	}
	p.phases(requests, append(phases, phase{start: time.Now()}))
	all := count(requests, time.Time{}, time.Now())
	down := count(requests, phases[1].start, phases[2].start)
	p.claim(all.failed == 0, "%d requests, %d failed%s", all.total, all.failed, because(all))
	p.claim(down.total > 0, "%d of them while no agent ran", down.total)
	after, err := p.stickyServer(ctx)
	if err != nil {
		return err
	}
	p.claim(before != "" && before == after, "%s is still with %s at Service sticky", clients[2].name, before)
	return nil
}

// stickyServer returns which server a client of Service sticky has.
func (p *play) stickyServer(ctx context.Context) (string, error) {
	out, err := p.curl(ctx, clients[2].name, p.sticky.url())
	name, _, _ := strings.Cut(out, " answers ")
	return name, err
}

func (p *play) killAndRestart(ctx context.Context) ([]phase, error) {
	phases := []phase{{title: "the agent runs", start: time.Now()}}
	if err := sleep(ctx, stepTime); err != nil {
		return nil, err
	}
	p.prompt(node, fmt.Sprintf("kill -9 %d", p.agent.Process.Pid))
	if err := p.agent.Process.Kill(); err != nil {
		return nil, err
	}
	_ = p.agent.Wait() // the error is that it was killed
	phases = append(phases, phase{title: "it is down", start: time.Now()})
	if err := p.agentLine(ctx); err != nil {
		return nil, err
	}
	if err := sleep(ctx, stepTime); err != nil {
		return nil, err
	}
	fmt.Fprintln(p.out)
	p.prompt(node, "beeline-agent ...")
	phases = append(phases, phase{title: "it runs again", start: time.Now()})
	var err error
	if p.agent, err = p.startAgent(ctx); err != nil {
		return nil, err
	}
	if err := p.agentLine(ctx); err != nil {
		return nil, err
	}
	return phases, sleep(ctx, stepTime)
}

// agentLine prints the first line of beeline status.
func (p *play) agentLine(ctx context.Context) error {
	out, err := p.beelineOutput(ctx, "status")
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(out, "\n")
	p.text(first + "\n...\n")
	return nil
}

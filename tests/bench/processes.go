package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// parts are the processes whose processor time is measured separately.
var parts = []string{"generator", "broker", "vault", "postgres"}

// serverParts are the parts that serve a request. A peer is another system that is compared with Brevet.
var serverParts = []string{"broker", "vault", "postgres", "peer"}

// tick is the unit of /proc/PID/stat, which is the same on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// spent returns the processor time of each part so far. The time of an ended process counts for its parent.
func (d *deployment) spent() map[string]time.Duration {
	spent := map[string]time.Duration{}
	all := statistics()
	for pid, stat := range all {
		if part := d.partOf(pid, stat); part != "" && ours(all, pid) {
			spent[part] += stat.time
		}
	}
	return spent
}

// ours reports whether this process started pid, directly or through other processes.
func ours(all map[int]statistic, pid int) bool {
	for pid > 1 {
		if pid == os.Getpid() {
			return true
		}
		pid = all[pid].parent
	}
	return false
}

type statistic struct {
	name   string
	parent int
	time   time.Duration
}

// statistics reads /proc/PID/stat of all processes (proc(5)).
func statistics() map[int]statistic {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	all := map[int]statistic{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		before, after, _ := strings.Cut(string(text), "(")
		name, rest, _ := strings.Cut(after, ") ")
		pid, _ := strconv.Atoi(strings.TrimSpace(before))
		fields := strings.Fields(rest)
		if len(fields) < 15 {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		s := statistic{name: name, parent: parent}
		for _, field := range fields[11:15] { // utime, stime, cutime, cstime
			ticks, _ := strconv.ParseInt(field, 10, 64)
			s.time += time.Duration(ticks) * tick
		}
		all[pid] = s
	}
	return all
}

func (d *deployment) partOf(pid int, s statistic) string {
	switch {
	case pid == os.Getpid():
		return "generator"
	case slices.ContainsFunc(d.brokers, func(r *replica) bool { return r.process.Process.Pid == pid }):
		return "broker"
	case slices.ContainsFunc(d.peers, func(peer *exec.Cmd) bool { return peer.Process.Pid == pid }):
		return "peer"
	case strings.HasPrefix(s.name, "postgres"):
		return "postgres"
	case s.name == "vault", s.name == "bao", strings.HasPrefix(s.name, "vaultd"):
		return "vault"
	default:
		return ""
	}
}

// memory returns the first broker's resident memory now and at its peak, in bytes.
func (d *deployment) memory() (now, most int64) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(d.brokers[0].process.Process.Pid), "status"))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = kib << 10
		case "VmHWM":
			most = kib << 10
		}
	}
	return now, most
}

// occupy starts n processes that do nothing but use a processor, for an hour of processor time at most. idle ends them.
func occupy(ctx context.Context, n int) (idle func() error, err error) {
	var loops []*exec.Cmd
	idle = func() (err error) {
		for _, loop := range loops {
			if killed := loop.Process.Kill(); !errors.Is(killed, os.ErrProcessDone) {
				err = errors.Join(err, killed)
			}
			_ = loop.Wait() // reports that it was killed
		}
		return err
	}
	for range n {
		loop := exec.CommandContext(ctx, "sh", "-c", "ulimit -t 3600; while :; do :; done")
		if err := loop.Start(); err != nil {
			return nil, errors.Join(err, idle())
		}
		loops = append(loops, loop)
	}
	return idle, nil
}

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

const (
	// quickEnough is how long an operation may run before its progress is shown.
	quickEnough = time.Second
	redrawEvery = 200 * time.Millisecond
	reportEvery = 5 * time.Second
)

// progress shows people how far an operation is. On a terminal it overwrites one line. Otherwise it prints a line now and
// then. It writes neither colours nor any other escape sequence.
type progress struct {
	out     io.Writer
	every   time.Duration
	redraws bool
	width   int // of the line on the terminal
}

func newProgress(out io.Writer) *progress {
	file, ok := out.(*os.File)
	if ok && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb" {
		return &progress{out: out, every: redrawEvery, redraws: true}
	}
	return &progress{out: out, every: reportEvery}
}

// follow prints what report returns until stop is called. It prints nothing if that happens within quickEnough. stop
// returns when the line on the terminal is empty again. report is called on another goroutine.
func (p *progress) follow(report func() string) (stop func()) {
	return repeat(quickEnough, p.every, func() { p.print(report()) }, func() {
		if p.width > 0 {
			fmt.Fprint(p.out, "\r"+strings.Repeat(" ", p.width)+"\r")
		}
	})
}

// repeat calls show on another goroutine, first after one time and then after each interval. stop ends that with a call of
// end.
func repeat(first, interval time.Duration, show, end func()) (stop func()) {
	ended, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		next := time.NewTimer(first)
		defer next.Stop()
		for {
			select {
			case <-ended:
				end()
				return
			case <-next.C:
				show()
				next.Reset(interval)
			}
		}
	}()
	return func() {
		close(ended)
		<-gone
	}
}

func (p *progress) print(line string) {
	if !p.redraws {
		fmt.Fprintln(p.out, line)
		return
	}
	width := len([]rune(line))
	fmt.Fprint(p.out, "\r"+line+strings.Repeat(" ", max(0, p.width-width)))
	p.width = width
}

// showWaiting updates one line until stop is called, which removes the line. If err cannot show that, it prints one fixed
// line. With JSON output it prints nothing.
func showWaiting(con *console, doing string, until time.Time) (stop func()) {
	if con.json {
		return func() {}
	}
	if !colourful(con.err) {
		fmt.Fprintf(con.err, "%s until %s\n", doing, until.Local().Format(time.TimeOnly))
		return func() {}
	}
	show := func() { fmt.Fprintf(con.err, "\r\x1b[K%s, expires in %s", doing, timeLeft(until)) }
	show()
	return repeat(time.Second, time.Second, show, func() { fmt.Fprint(con.err, "\r\x1b[K") })
}

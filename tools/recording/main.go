// Recording runs a command and draws what it prints as an animated SVG, at a speed at which a person can read:
//
//	go run -C tools ./recording -o docs/demo.svg -- bin/brevet demo
//
// The paths are relative to the root of the repository.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"html"
	"os"
	"os/exec"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	columns    = 104
	rows       = 34  // that are visible at a time
	lineHeight = 19  // pixels
	charWidth  = 8.0 // pixels, of 13.3 px monospace
	longest    = 900 * time.Millisecond
	shortest   = 220 * time.Millisecond
	lastShown  = 6 * time.Second
)

type line struct {
	text string
	at   time.Duration // in the recording
}

func main() {
	out := flag.String("o", "", "SVG to write")
	flag.Parse()
	if err := run(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

func run(out string, command []string) error {
	if out == "" || len(command) == 0 {
		return errors.New("usage: recording -o FILE.svg -- COMMAND ARG...")
	}
	if err := os.Chdir(".."); err != nil { // go run -C leaves us in tools
		return err
	}
	lines, err := record(command)
	if err != nil {
		return err
	}
	return os.WriteFile(out, draw(strings.Join(command, " "), lines), 0o644)
}

// record runs the command and returns its lines. Waits longer than a reader needs are cut, and lines that come at once are spread.
func record(command []string) ([]line, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := []line{{text: "$ " + strings.TrimPrefix(strings.Join(command, " "), "bin/"), at: 0}}
	last := time.Now()
	for scanner := bufio.NewScanner(output); scanner.Scan(); {
		wait := min(max(time.Since(last), shortest), longest)
		last = time.Now()
		for _, part := range wrap(scanner.Text()) {
			lines = append(lines, line{part, lines[len(lines)-1].at + wait})
			wait = 0
		}
	}
	return lines, cmd.Wait()
}

// wrap splits a line that is too long, and indents the rest like the text of the line.
func wrap(text string) []string {
	var parts []string
	indent := ""
	for utf8.RuneCountInString(text) > columns {
		runes := []rune(text)
		end := strings.LastIndex(string(runes[:columns]), " ")
		if end <= len(indent) {
			end = len(string(runes[:columns]))
		}
		parts = append(parts, text[:end])
		indent = strings.Repeat(" ", 14)
		text = indent + strings.TrimLeft(text[end:], " ")
	}
	return append(parts, text)
}

// draw makes one SVG text element for each line, which appears at its time. The picture scrolls when it is full. A viewer that prefers
// reduced motion sees the first screen.
func draw(title string, lines []line) []byte {
	total := lines[len(lines)-1].at + lastShown
	percent := func(at time.Duration) float64 { return 100 * at.Seconds() / total.Seconds() }
	width, height := int(columns*charWidth)+32, rows*lineHeight+56
	var style, body strings.Builder
	fmt.Fprintf(&style, "text{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#d0d7de}"+
		".h{fill:#7ee787;font-weight:600}.c{fill:#79c0ff}.k{fill:#8b949e}"+
		"@media (prefers-reduced-motion:no-preference){.l{opacity:0;animation:%.1fs steps(1) infinite}#s{animation:s %.1fs steps(1) infinite}",
		total.Seconds(), total.Seconds())
	scroll := "@keyframes s{0%{transform:none}"
	for i, l := range lines {
		fmt.Fprintf(&style, "#l%d{animation-name:l%d}@keyframes l%d{0%%{opacity:0}%.2f%%,100%%{opacity:1}}", i, i, i, percent(l.at))
		if i >= rows {
			scroll += fmt.Sprintf("%.2f%%{transform:translateY(-%dpx)}", percent(l.at), (i-rows+1)*lineHeight)
		}
		class, text := "l", l.text
		switch {
		case i == 0:
			class += " c"
		case len(text) > 0 && text[0] != ' ':
			class += " h"
		}
		fmt.Fprintf(&body, `<text id="l%d" class="%s" x="16" y="%d">%s</text>`+"\n", i, class, 60+i*lineHeight, label(text))
	}
	past := max(0, len(lines)-rows) * lineHeight
	fmt.Fprintf(&style, "%s100%%{transform:translateY(-%dpx)}}}", scroll, past)
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-label="Recording of %[3]s">
<style>%[4]s</style>
<rect width="%[1]d" height="%[2]d" rx="8" fill="#0d1117"/>
<circle cx="20" cy="18" r="6" fill="#ff5f56"/><circle cx="40" cy="18" r="6" fill="#ffbd2e"/><circle cx="60" cy="18" r="6" fill="#27c93f"/>
<svg y="36" width="%[1]d" height="%[6]d" viewBox="0 36 %[1]d %[6]d"><g id="s">
%[5]s</g></svg>
</svg>
`, width, height, html.EscapeString(title), style.String(), body.String(), height-46)
}

// label dims the name of a fact, which is indented by three.
func label(text string) string {
	if strings.HasPrefix(text, "   ") && len(text) > 14 && text[3] != ' ' {
		return `<tspan class="k">` + html.EscapeString(text[:14]) + `</tspan>` + html.EscapeString(text[14:])
	}
	return html.EscapeString(text)
}

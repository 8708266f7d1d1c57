package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// plot draws each series as an SVG into a folder: the latency of an issue as a multiple of the latency at the first size.
func (g *growth) plot(folder string) error {
	if folder == "" {
		return nil
	}
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	for _, s := range g.Series {
		name := filepath.Join(folder, "growth-"+strings.ReplaceAll(s.Name, " ", "-")+".svg")
		if err := os.WriteFile(name, []byte(s.svg()), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// svg returns a chart with one position for each size, readable on light and dark backgrounds.
func (s series) svg() string {
	const width, height, left, bottom, top = 640, 300, 60, 250, 40
	most := 1.5
	for _, p := range s.Points {
		most = max(most, s.ratio(p.P50, s.Points[0].P50)*1.1, s.ratio(p.Busy, s.Points[0].Busy)*1.1)
	}
	x := func(i int) float64 {
		return left + 60 + float64(i)*(width-left-120)/math.Max(1, float64(len(s.Points)-1))
	}
	y := func(ratio float64) float64 { return bottom - ratio/most*(bottom-top) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" font-family="sans-serif" font-size="13" fill="#777">
<title>Median latency of an issue by %s, as a multiple of that at the first size</title>
`, width, height, s.Name)
	for ratio := 0.0; ratio <= most; ratio += 0.5 {
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#999" stroke-opacity="0.4"/><text x="%d" y="%.1f" text-anchor="end">%.1f×</text>
`, left, y(ratio), width-20, left-8, y(ratio)+4, ratio)
	}
	for i, p := range s.Points {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>
`, x(i), bottom+20, short(p.Size))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>
`, (width+left)/2, bottom+42, s.Name)
	for n, line := range []struct {
		name, colour string
		of           func(point) int64
	}{
		{"one caller", "#0a7", func(p point) int64 { return p.P50 }},
		{"many callers", "#d60", func(p point) int64 { return p.Busy }},
	} {
		var path strings.Builder
		for i, p := range s.Points {
			fmt.Fprintf(&path, "%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[i == 0], x(i), y(s.ratio(line.of(p), line.of(s.Points[0]))))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>
`, x(i), y(s.ratio(line.of(p), line.of(s.Points[0]))), line.colour)
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/><text x="%d" y="20" fill="%s">%s</text>
`, &path, line.colour, left+150*n, line.colour, line.name)
	}
	return b.String() + "</svg>\n"
}

func (s series) ratio(of, first int64) float64 { return float64(of) / float64(max(first, 1)) }

// short formats a number with a unit of K or M.
func short(n int64) string {
	switch {
	case n >= 1_000_000:
		return fmt.Sprintf("%g M", float64(n)/1_000_000)
	case n >= 1_000:
		return fmt.Sprintf("%g K", float64(n)/1_000)
	default:
		return fmt.Sprint(n)
	}
}

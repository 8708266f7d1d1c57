package console

import "strings"

// span is a piece of a paragraph. Code is set for text between backticks.
type span struct {
	Text string
	Code bool
}

// prose parses Brevet's own texts: empty lines separate paragraphs, and backticks enclose code. No other markup has a
// meaning.
func prose(text string) [][]span {
	var paragraphs [][]span
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		var spans []span
		for i, piece := range strings.Split(paragraph, "`") {
			if piece != "" {
				spans = append(spans, span{piece, i%2 == 1})
			}
		}
		if len(spans) > 0 {
			paragraphs = append(paragraphs, spans)
		}
	}
	return paragraphs
}

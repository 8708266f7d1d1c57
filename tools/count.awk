# Reads what go test -json prints: passes on what tests said that fail, and counts those without parts of their own. It
# ends with "N passed, N failed", and fails when something did or nothing ran.
function field(name) {
	if (!match($0, "\"" name "\":\"([^\"\\\\]|\\\\.)*\"")) return ""
	return substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 5)
}
{
	action = field("Action"); test = field("Package") " " field("Test")
	if (action == "output") said[test] = said[test] field("Output")
	if (action != "pass" && action != "fail" && action != "skip") next
	if (field("Test") == "") {
		if (action == "fail") { broken = 1; told[test] = 1 }
		next
	}
	ended[test] = action
	if (action != "pass") told[test] = 1
	while (sub("/[^/]*$", "", test)) parent[test] = 1
}
END {
	for (test in told) {
		text = said[test]
		gsub(/\\n/, "\n", text); gsub(/\\t/, "\t", text); gsub(/\\"/, "\"", text)
		printf "%s\n%s", test, text
	}
	for (test in ended) if (!(test in parent)) { if (ended[test] == "pass") passed++; else failed++ }
	printf "%d passed, %d failed\n", passed, failed
	exit broken || failed > 0 || passed == 0
}

# Run inside a sandbox on the universal image: every promised runtime runs a small program, and every conversion makes a
# file that opens again. Prints `ok NAME` or `FAILED NAME` for each, and ends with the number of failures.
cd "$(mktemp -d -p /workspace)" || exit 99
export HOME=$PWD GOCACHE=$PWD/go GOFLAGS=-mod=mod
failures=0

# expect NAME WANTED COMMAND…: what the command prints, without its last line's end, must be WANTED.
expect() {
  local name=$1 wanted=$2 got
  shift 2
  if got=$("$@" 2> "$name.err") && [ "$got" = "$wanted" ]; then
    echo "ok $name"
  else
    echo "FAILED $name: got '$got'; $(tail -n 3 "$name.err")"
    failures=$((failures + 1))
  fi
}

cat > t.py <<'P'
import matplotlib, numpy, openpyxl, pandas, PIL, scipy, sklearn
matplotlib.use("Agg")
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.savefig("t.png")
from PIL import Image
assert Image.open("t.png").size[0] > 100
print(pandas.DataFrame({"a": [1, 2, 3]}).a.sum())
P
echo 'console.log([1,2,3].map(x => x * 2).join())' > t.js
echo 'puts (1..4).inject(:*)' > t.rb
echo 'public class T { public static void main(String[] a) { System.out.println("java".toUpperCase()); } }' > T.java
printf 'package main\nimport "fmt"\nfunc main() { fmt.Println(6 * 7) }\n' > t.go
echo 'fn main() { println!("{}", (1..=5).product::<u64>()); }' > t.rs
echo '<?php echo json_encode(["a" => 1]), "\n";' > t.php
printf '#include <iostream>\nint main() { std::cout << 12 << std::endl; }\n' > t.cc

expect python 6 python3 t.py
expect pip 'pip' sh -c "python3 -m pip --version | cut -d' ' -f1"
expect node 2,4,6 node t.js
expect npm ok sh -c 'npm init -y > /dev/null && test -s package.json && echo ok'
expect ruby 24 ruby t.rb
expect java JAVA sh -c 'javac T.java && java T'
expect go 42 go run t.go
expect rust 120 sh -c 'rustc t.rs -o t-rs && ./t-rs'
expect cargo 'Hello, world!' sh -c 'cargo -q init --name hello --vcs none crate && cd crate && cargo -q run --offline'
expect php '{"a":1}' php t.php
expect cxx 12 sh -c 'g++ t.cc -o t-cc && ./t-cc'
expect sqlite 3 sqlite3 :memory: 'select 1 + 2'

printf '# Title\n\nSome **bold** words.\n' > t.md
printf 'a,b\n1,2\n3,4\n' > t.csv
office() { timeout 240 soffice --headless "-env:UserInstallation=file://$PWD/office" --convert-to "$@" > /dev/null; }
expect md-docx Title sh -c "pandoc t.md -o t.docx && python3 -c 'import docx; print(docx.Document(\"t.docx\").paragraphs[0].text)'"
expect docx-pdf Title sh -c "$(declare -f office); office pdf t.docx && pdftotext t.pdf - | head -n 1"
expect csv-xlsx 4 sh -c "$(declare -f office); office xlsx t.csv && python3 -c 'import openpyxl; print(openpyxl.load_workbook(\"t.xlsx\").active[\"B3\"].value)'"
expect xlsx-csv 3,4 sh -c "$(declare -f office); mkdir -p back && cp t.xlsx back/u.xlsx && office csv back/u.xlsx && tail -n 1 u.csv"
python3 - <<'P'
import pptx
deck = pptx.Presentation()
slide = deck.slides.add_slide(deck.slide_layouts[0])
slide.shapes.title.text = "Deck"
deck.save("deck.pptx")
P
expect pptx-pdf Deck sh -c "$(declare -f office); office pdf deck.pptx && pdftotext deck.pdf - | head -n 1"
expect md-html '<h1 id="title">Title</h1>' sh -c 'pandoc t.md -t html | head -n 1'

exit "$failures"

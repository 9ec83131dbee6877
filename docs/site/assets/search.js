// Search over the titles and texts of all pages, which index.json has.
const input = document.getElementById("search");
const found = document.getElementById("found");
let pages;

async function search() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  pages ??= await (await fetch(input.dataset.index)).json();
  const rank = (page) => {
    const title = page.title.toLowerCase();
    const text = page.text.toLowerCase();
    let score = 0;
    for (const word of words) {
      if (!title.includes(word) && !text.includes(word)) return 0;
      score += (title.includes(word) ? 100 : 0) + text.split(word).length - 1;
    }
    return score;
  };
  const root = input.dataset.index.replace(/index\.json$/, "");
  const hits = words.length ? pages.map((page) => [rank(page), page]).filter(([score]) => score > 0) : [];
  hits.sort(([a], [b]) => b - a);
  found.replaceChildren(...hits.slice(0, 12).map(([, page]) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = page.at.startsWith("/") ? root + page.at.slice(1) : page.at;
    link.textContent = page.title;
    item.append(link);
    return item;
  }));
}

input.addEventListener("input", search);

// Texts that do not stand out from the nearest ground that is painted, as WCAG 2.2 defines luminance and contrast.
(least) => {
  const parse = (text) => {
    const numbers = text.match(/[\d.]+/g).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1;
    return { rgb: numbers.slice(0, 3).map((v) => v * scale), alpha: numbers.length > 3 ? numbers[3] : 1 };
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const layer = parse(getComputedStyle(e).backgroundColor);
      if (layer.alpha > 0) layers.push(layer);
      if (layer.alpha === 1) break;
    }
    let rgb = [255, 255, 255];
    for (const { rgb: over, alpha } of layers.reverse()) rgb = rgb.map((v, i) => v * (1 - alpha) + over[i] * alpha);
    return rgb;
  };
  const found = new Set();
  for (const e of document.querySelectorAll("main *, header *, footer *")) {
    if (e.closest(".chart, svg, option, [hidden]") || !e.getClientRects().length) continue;
    if (![...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const [dim, bright] = [luminance(parse(getComputedStyle(e).color).rgb), luminance(ground(e))].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dim + 0.05);
    if (contrast < least) found.add(`${e.tagName}.${e.className} ${contrast.toFixed(2)}: ${e.textContent.trim().slice(0, 40)}`);
  }
  return [...found];
}

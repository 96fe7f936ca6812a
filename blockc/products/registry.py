"""registry: the products that a build can have, by their name in `--target`."""

from __future__ import annotations

from blockc.products import genai, sentence
from blockc.products.product import Product

PRODUCTS: dict[str, Product] = {product.name: product for product in (genai.PRODUCT, sentence.PRODUCT)}
